//! Effects on a connection of others that send to the same address.

use std::collections::BTreeSet;

use squall_wire::Side;

use crate::common::Pair;

/// The lengths of a server's acknowledgements while the client's packets get lost in many ways, and
/// how many of them the client has received.
fn acknowledgements(rate_together: u64) -> (BTreeSet<usize>, u64) {
    let mut pair = Pair::new();
    pair.run();
    pair.connection(Side::Server)
        .set_rate_together(rate_together);
    let before = pair.connection(Side::Client).stats().acks_received;
    let mut lengths = BTreeSet::new();
    for round in 0..400u32 {
        for packet in 0..4 {
            let ping = pair.take_ping(Side::Client);
            // The last one of each round arrives, so that an acknowledgement is sent.
            if packet == 3 || round >> packet & 1 == 0 {
                pair.deliver(Side::Server, &ping);
            }
        }
        while let Some(datagram) = pair.take_datagram(Side::Server) {
            lengths.insert(datagram.len());
            pair.deliver(Side::Client, &datagram);
        }
    }
    let acks = pair.connection(Side::Client).stats().acks_received;
    (lengths, acks - before)
}

#[test]
fn acknowledgements_of_concurrent_connections_have_few_lengths() {
    let (short, acks) = acknowledgements(0);
    assert!(short.len() > 4, "{short:?}");
    let (equal, as_many) = acknowledgements(1);
    // Header and tag take 27 bytes. Some packets also have a PING.
    assert_eq!(equal.into_iter().collect::<Vec<_>>(), [27 + 22]);
    assert_eq!(acks, as_many);
}
