//! Packets whose fixed bit is 0, at an end that has not asked for them.

use squall_wire::{FixedBit, Side, header};

use crate::common::Pair;

// test: RFC 9000 §17.3.1; RFC 9287 §3
#[test]
fn an_authentic_packet_with_a_cleared_fixed_bit_is_dropped_unless_offered() {
    let mut pair = Pair::new();
    pair.run();
    pair.connection(Side::Server).endpoint.fixed_bit = FixedBit::Required;
    let (mut greased, mut others) = (0, 0);
    for _ in 0..64 {
        let datagram = pair.take_ping(Side::Client);
        let before = pair.connection(Side::Server).stats().packets_dropped;
        pair.deliver(Side::Server, &datagram);
        let dropped = pair.connection(Side::Server).stats().packets_dropped - before;
        let is_greased = datagram[0] & header::FIXED_BIT == 0;
        assert_eq!(dropped, u64::from(is_greased), "{:#x}", datagram[0]);
        *if is_greased {
            &mut greased
        } else {
            &mut others
        } += 1;
    }
    assert!(greased > 8 && others > 8, "{greased} and {others}");
}
