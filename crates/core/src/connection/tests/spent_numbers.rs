//! Packet numbers end.

use squall_wire::{Side, varint};

use crate::common::Pair;
use crate::event::Event;
use crate::space::SpaceId;
use crate::stages::Stages;

// test: RFC 9000 §12.3; SECURITY.md row 25
#[test]
fn exhausted_packet_numbers_end_the_connection_silently() {
    for (left, ends) in [(5000, false), (4096, true), (0, true)] {
        let mut pair = Pair::new();
        pair.run();
        let now = pair.now;
        let server = pair.connection(Side::Server);
        let sent = &mut server.spaces[SpaceId::Data].sent;
        sent.discard();
        sent.continue_from(varint::MAX - left);
        server.spaces.skip_none();
        server.ping();
        let mut buffer = vec![0; 65_536];
        let datagram = server.transmit(now, &mut buffer, 64, &mut Stages::off());
        assert_eq!(datagram.is_none(), ends, "{left}");
        assert_eq!(server.is_drained(), ends, "{left}");
        server.ping();
        let datagram = server.transmit(now, &mut buffer, 64, &mut Stages::off());
        assert_eq!(datagram.is_none(), ends, "{left}");
        let closed =
            std::iter::from_fn(|| server.poll_event()).find(|e| matches!(e, Event::Closed(_)));
        assert_eq!(closed.is_some(), ends, "{left}");
    }
}
