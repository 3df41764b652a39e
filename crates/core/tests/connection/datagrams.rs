//! Unreliable datagrams (RFC 9221).

use bytes::Bytes;
use squall_core::{DatagramError, Event, Stages, TransportConfig};
use squall_wire::{Side, Transmit};

use crate::common::Pair;

fn numbered(i: u32, len: usize) -> Bytes {
    let mut data = vec![0; len];
    data[..4].copy_from_slice(&i.to_be_bytes());
    data.into()
}

// test: RFC 9221 §5
#[test]
fn datagrams_arrive_in_both_directions_and_in_order() {
    let mut pair = Pair::new();
    assert_eq!(
        pair.connection(Side::Client)
            .send_datagram(Bytes::from_static(b"early")),
        Err(DatagramError::Unsupported)
    );
    pair.run();
    for side in [Side::Client, Side::Server] {
        pair.events(side.peer());
        // This call starts the search for larger packets.
        let most = pair.connection(side).max_datagram_size().unwrap();
        assert!(most < 1200, "{most} bytes in a packet of 1200");
        pair.run();
        let most = pair.connection(side).max_datagram_size().unwrap();
        assert!(
            most > 1300 && most < 1472,
            "{most} bytes in a packet of 1472"
        );
        let connection = pair.connection(side);
        assert_eq!(
            connection.send_datagram(numbered(0, most + 1)),
            Err(DatagramError::TooLarge)
        );
        for (i, len) in [4, most, 100, 1000, most].into_iter().enumerate() {
            connection.send_datagram(numbered(i as u32, len)).unwrap();
        }
        pair.run();
        let reported = pair.events(side.peer());
        assert_eq!(reported, [Event::DatagramsReadable], "once, not five times");
        for (i, len) in [4, most, 100, 1000, most].into_iter().enumerate() {
            let read = pair.connection(side.peer()).read_datagram();
            assert_eq!(read, Some(numbered(i as u32, len)));
        }
        assert_eq!(pair.connection(side.peer()).read_datagram(), None);
    }
}

// test: SECURITY.md row 45
#[test]
fn queues_are_bounded() {
    let mut pair = Pair::with(
        TransportConfig::default()
            .datagram_receive_buffer(10_000)
            .datagram_send_buffer(10_000),
    );
    pair.run();
    let client = pair.connection(Side::Client);
    let mut taken = 0;
    while client.send_datagram(numbered(taken, 1000)).is_ok() {
        taken += 1;
    }
    assert_eq!(taken, 9, "nine times 1,064 bytes");
    // The newest replaces the oldest.
    client.send_newest_datagram(numbered(9, 1000)).unwrap();
    assert_eq!(client.stats().datagram_frames_dropped, 1);
    pair.events(Side::Client);
    for burst in 0..3 {
        pair.run();
        assert!(
            pair.events(Side::Client)
                .contains(&Event::DatagramsWritable)
                || burst > 0
        );
        for i in 0..9 {
            let _ = pair
                .connection(Side::Client)
                .send_datagram(numbered(100 * (burst + 1) + i, 1000));
        }
    }
    pair.run();
    let server = pair.connection(Side::Server);
    let waiting: Vec<Bytes> = std::iter::from_fn(|| server.read_datagram()).collect();
    assert_eq!(waiting.len(), 9, "a reader that is away costs no more");
    assert_eq!(waiting.last(), Some(&numbered(308, 1000)));
    let stats = server.stats();
    assert_eq!(
        stats.datagram_frames_received - stats.datagram_frames_dropped,
        9
    );
}

// test: RFC 9221 §3
#[test]
fn no_frame_is_larger_than_the_peer_accepts() {
    for (accepted, largest) in [(0, None), (3, Some(1)), (100, Some(97)), (1000, Some(997))] {
        let transport = TransportConfig::default().max_datagram_frame_size(accepted);
        assert_eq!(transport.check(), Ok(()));
        let mut pair = Pair::with(transport);
        pair.run();
        let client = pair.connection(Side::Client);
        assert_eq!(client.max_datagram_size(), largest, "{accepted} bytes");
        let refused = match largest {
            None => DatagramError::Unsupported,
            Some(_) => DatagramError::TooLarge,
        };
        let too_large = Bytes::from(vec![7; largest.map_or(0, |most| most + 1)]);
        assert_eq!(client.send_datagram(too_large), Err(refused));
        if let Some(most) = largest {
            let data = Bytes::from(vec![7; most]);
            client.send_datagram(data.clone()).unwrap();
            pair.run();
            let server = pair.connection(Side::Server);
            assert_eq!(server.read_datagram(), Some(data));
        }
    }
    for wrong in [1, 2] {
        let config = TransportConfig::default().max_datagram_frame_size(wrong);
        let error = config.check().unwrap_err();
        assert!(error.contains("max_datagram_frame_size"), "{error}");
    }
}

#[test]
fn a_writer_is_notified_once_and_before_the_queue_runs_dry() {
    let mut pair = Pair::with(TransportConfig::default().datagram_send_buffer(10_000));
    pair.run();
    // No probes between the datagrams.
    let _ = pair.connection(Side::Client).max_datagram_size();
    let mut buffer = vec![0; 2000];
    // Each refusal is followed by one event, when 4 of 9 are left.
    for _ in 0..2 {
        pair.run();
        while (pair.connection(Side::Client))
            .send_datagram(numbered(0, 1000))
            .is_ok()
        {}
        pair.events(Side::Client);
        let mut reported = Vec::new();
        for sent in 1..=9 {
            let (now, client) = (pair.now, pair.connection(Side::Client));
            let transmit = client.transmit(now, &mut buffer, 1, &mut Stages::off());
            assert!(transmit.is_some());
            while let Some(event) = client.poll_event() {
                reported.push((sent, event));
            }
        }
        assert_eq!(reported, [(5, Event::DatagramsWritable)]);
    }
}

#[test]
fn a_datagram_larger_than_the_queue_is_still_sent() {
    let mut pair = Pair::with(TransportConfig::default().datagram_send_buffer(500));
    pair.run();
    let client = pair.connection(Side::Client);
    client.send_datagram(numbered(0, 1000)).unwrap();
    let refused = client.send_datagram(numbered(1, 10));
    assert_eq!(refused, Err(DatagramError::Blocked));
    pair.run();
    let server = pair.connection(Side::Server);
    assert_eq!(server.read_datagram(), Some(numbered(0, 1000)));
}

/// Sends datagrams of these lengths, and returns what each bundle was.
fn sent(lens: &[usize]) -> Vec<Transmit> {
    let mut pair = Pair::new();
    pair.run();
    let _ = pair.connection(Side::Client).max_datagram_size();
    pair.run();
    let client = pair.connection(Side::Client);
    for (i, len) in lens.iter().enumerate() {
        client
            .send_datagram(numbered(i as u32, *len))
            .expect("a datagram that fits");
    }
    let now = pair.now;
    let mut bundles = Vec::new();
    let mut packets: Vec<Vec<u8>> = Vec::new();
    let mut buffer = vec![0; 65_000];
    let client = pair.connection(Side::Client);
    while let Some(sent) = client.transmit(now, &mut buffer, 64, &mut Stages::off()) {
        bundles.push(sent);
        let all = buffer[..sent.len].chunks(sent.segment_size.into());
        packets.extend(all.map(<[u8]>::to_vec));
    }
    for packet in &packets {
        pair.deliver(Side::Server, packet);
    }
    let server = pair.connection(Side::Server);
    for (i, len) in lens.iter().enumerate() {
        assert_eq!(server.read_datagram(), Some(numbered(i as u32, *len)));
    }
    bundles
}

/// The same, and returns how many packets each bundle has.
fn bundles(lens: &[usize]) -> Vec<usize> {
    sent(lens).iter().map(Transmit::count).collect()
}

#[test]
fn the_last_packet_of_a_bundle_is_as_long_as_the_others() {
    // This allows another connection's packets to follow in the same message.
    for lens in [&[1100; 8][..], &[300; 12], &[1100, 1090]] {
        let sent = sent(lens);
        let [bundle] = sent[..] else {
            panic!("{sent:?}");
        };
        assert_eq!(bundle.len % usize::from(bundle.segment_size), 0, "{lens:?}");
    }
}

#[test]
fn datagrams_are_sent_in_bundles() {
    // A packet leaves some hundred bytes unused; 300-byte datagrams fit four times.
    assert_eq!(bundles(&[1100; 8]), [8]);
    assert_eq!(bundles(&[300; 12]), [3]);
    // A somewhat shorter one is padded, a much shorter one ends its bundle, and a longer one
    // begins one.
    assert_eq!(bundles(&[1100, 900, 1100]), [3]);
    assert_eq!(bundles(&[1100, 800, 1100]), [2, 1]);
    assert_eq!(bundles(&[1100, 1100, 1300, 1300]), [2, 2]);
}
