//! The sockets over loopback: what goes in as bundles comes out byte for byte, marked and addressed
//! as sent.
#![cfg(target_os = "linux")]
#![allow(
    clippy::unwrap_used,
    reason = "a test fails by panicking, in its helpers too"
)]

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use common::{
    bind, collect, datagrams, one_port_of_each_family, pattern, push, push_to, reachable, to,
};
use squall_udp::{Options, RecvBatch, SendBatch, Socket};
use squall_wire::{Ecn, Path};

mod common;

const SEGMENT: usize = 1472;

#[test]
fn bundles_arrive_byte_for_byte_and_as_bundles() {
    let (a, b) = (bind("127.0.0.1:0"), bind("127.0.0.1:0"));
    let mut batch = SendBatch::new(4, 65_536);
    let path = to(reachable(&b));
    // 44 full datagrams, and 44 whose last one is shorter.
    let (full, short) = (pattern(44 * SEGMENT, 1), pattern(43 * SEGMENT + 100, 2));
    push(&mut batch, path, Ecn::NotEct, SEGMENT, &full);
    push(&mut batch, path, Ecn::NotEct, SEGMENT, &short);
    let gso = a.limits().gso_segments > 1;
    assert_eq!(a.send(&mut batch).unwrap(), if gso { 2 } else { 88 });
    assert!(batch.is_empty());

    let got = collect(&b, full.len() + short.len());
    let expected: Vec<&[u8]> = full.chunks(SEGMENT).chain(short.chunks(SEGMENT)).collect();
    assert!(datagrams(&got) == expected, "the datagrams differ");
    assert_eq!(got[0].path.remote, reachable(&a));
    if gso && b.limits().gro {
        // Loopback hands a whole GSO bundle to a GRO socket.
        assert_eq!(got.len(), 2);
        assert_eq!(b.stats().messages_received, 2);
    }
    assert_eq!(b.stats().datagrams_received, 88);
    assert_eq!(b.stats().bytes_received, (full.len() + short.len()) as u64);
    assert_eq!(a.stats().datagrams_sent, 88);
    assert_eq!(a.stats().send_calls, if gso { 1 } else { 6 });
}

#[test]
fn a_receiver_without_gro_gets_single_datagrams() {
    let a = bind("127.0.0.1:0");
    let b = Socket::bind(
        "127.0.0.1:0".parse().unwrap(),
        &Options {
            gro: false,
            ..Options::default()
        },
    )
    .unwrap();
    assert!(!b.limits().gro);
    let bytes = pattern(10 * 1200, 3);
    let mut batch = SendBatch::new(1, 65_536);
    push_to(&mut batch, &b, 1200, &bytes);
    a.send(&mut batch).unwrap();
    let got = collect(&b, bytes.len());
    assert_eq!(b.stats().messages_received, 10);
    assert!(got.len() < 10, "datagrams of one receive call are joined");
    assert!(datagrams(&got) == bytes.chunks(1200).collect::<Vec<_>>());
}

#[test]
fn the_largest_allowed_bundles_are_sent_and_received() {
    let (a, b) = (bind("127.0.0.1:0"), bind("127.0.0.1:0"));
    let mut batch = SendBatch::new(2, 65_536);
    let segments = a.limits().gso_segments;
    let many = pattern(segments * 20, 4);
    push_to(&mut batch, &b, 20, &many);
    let longest = pattern(squall_udp::MAX_BUNDLE_BYTES, 5);
    push_to(&mut batch, &b, 1472, &longest);
    a.send(&mut batch).unwrap();
    let got = collect(&b, many.len() + longest.len());
    assert!(
        datagrams(&got)
            == many
                .chunks(20)
                .chain(longest.chunks(1472))
                .collect::<Vec<_>>()
    );
    assert_eq!(a.stats().gso_fallbacks, 0);
}

#[test]
fn more_segments_than_the_limit_are_resent_singly_and_gso_stays() {
    let (a, b) = (bind("127.0.0.1:0"), bind("127.0.0.1:0"));
    let segments = a.limits().gso_segments;
    if segments == 1 {
        return; // a kernel without GSO: nothing to refuse
    }
    let bytes = pattern((segments + 1) * 20, 6);
    let mut batch = SendBatch::new(1, 65_536);
    push_to(&mut batch, &b, 20, &bytes);
    a.send(&mut batch).unwrap();
    assert!(datagrams(&collect(&b, bytes.len())) == bytes.chunks(20).collect::<Vec<_>>());
    assert_eq!(a.stats().gso_fallbacks, 1);
    assert_eq!(a.limits().gso_segments, segments);
}

#[test]
fn eio_disables_gso_for_its_destination_and_loses_nothing() {
    let options = Options {
        gso_retry: Duration::from_secs(3600),
        ..Options::default()
    };
    let a = Socket::bind("0.0.0.0:0".parse().unwrap(), &options).unwrap();
    // All of 127.0.0.0/8 is local: two destinations that share no prefix.
    let (b, c) = (bind("127.0.0.1:0"), bind("127.0.9.1:0"));
    let (one, two) = (pattern(5 * 1200, 7), pattern(3 * 1200 + 11, 8));
    let mut batch = SendBatch::new(2, 65_536);
    push(&mut batch, to(reachable(&b)), Ecn::Ect0, 1200, &one);
    push(&mut batch, to(reachable(&b)), Ecn::Ect0, 1200, &two);
    let segments = a.limits().gso_segments;
    a.inject_send_error(libc::EIO);
    a.send(&mut batch).unwrap();
    if segments == 1 {
        return; // the error hit a single datagram, which counts as lost
    }
    let got = collect(&b, one.len() + two.len());
    assert!(datagrams(&got) == one.chunks(1200).chain(two.chunks(1200)).collect::<Vec<_>>());
    assert!(got.iter().all(|m| m.ecn == Ecn::Ect0));
    let stats = a.stats();
    assert_eq!(
        (stats.gso_fallbacks, stats.gso_disabled, stats.messages_sent),
        (1, 1, 9)
    );
    assert_eq!((stats.datagrams_sent, stats.send_errors), (9, 0));

    // A later bundle goes out as single datagrams without a failing call.
    push_to(&mut batch, &b, 1200, &one);
    assert_eq!(a.send(&mut batch).unwrap(), 5);
    assert!(datagrams(&collect(&b, one.len())) == one.chunks(1200).collect::<Vec<_>>());
    assert_eq!(a.stats().gso_fallbacks, 1);

    // Another route never failed, so it uses bundles, in one call with datagrams to the first.
    push_to(&mut batch, &c, 1200, &one);
    push_to(&mut batch, &b, 1200, &two);
    assert_eq!(a.send(&mut batch).unwrap(), 1 + 4);
    assert!(datagrams(&collect(&c, one.len())) == one.chunks(1200).collect::<Vec<_>>());
    assert!(datagrams(&collect(&b, two.len())) == two.chunks(1200).collect::<Vec<_>>());
    assert_eq!(a.limits().gso_segments, segments);
}

#[test]
fn gso_is_retried_after_a_while() {
    let options = Options {
        gso_retry: Duration::ZERO,
        ..Options::default()
    };
    let a = Socket::bind("127.0.0.1:0".parse().unwrap(), &options).unwrap();
    let b = bind("127.0.0.1:0");
    if a.limits().gso_segments == 1 {
        return;
    }
    let bytes = pattern(5 * 1200, 7);
    let mut batch = SendBatch::new(1, 65_536);
    for (errno, messages) in [(libc::EIO, 5), (0, 1), (libc::EIO, 5), (0, 1)] {
        push_to(&mut batch, &b, 1200, &bytes);
        a.inject_send_error(errno);
        assert_eq!(a.send(&mut batch).unwrap(), messages);
        assert!(datagrams(&collect(&b, bytes.len())) == bytes.chunks(1200).collect::<Vec<_>>());
    }
    assert_eq!(a.stats().gso_disabled, 2);
}

#[test]
fn einval_resends_one_bundle_and_disables_gso_only_if_it_persists() {
    let (a, b) = (bind("127.0.0.1:0"), bind("127.0.0.1:0"));
    let segments = a.limits().gso_segments;
    if segments == 1 {
        return;
    }
    let mut batch = SendBatch::new(1, 65_536);
    let mut send = |seed, errno| {
        let bytes = pattern(4 * 1000, seed);
        push_to(&mut batch, &b, 1000, &bytes);
        a.inject_send_error(errno);
        a.send(&mut batch).unwrap();
        assert!(datagrams(&collect(&b, bytes.len())) == bytes.chunks(1000).collect::<Vec<_>>());
    };
    send(1, libc::EINVAL);
    send(2, libc::EMSGSIZE);
    assert_eq!(a.limits().gso_segments, segments);
    send(3, 0); // a bundle that passes as a whole: the count starts again
    send(4, libc::EINVAL);
    send(5, libc::EINVAL);
    assert_eq!(a.limits().gso_segments, segments);
    assert_eq!(a.stats().gso_disabled, 0);
    send(6, libc::EINVAL);
    assert_eq!((a.stats().gso_disabled, a.stats().gso_fallbacks), (1, 5));
    // From now on no bundle is tried: the error hits a single datagram.
    push_to(&mut batch, &b, 1000, &pattern(4000, 7));
    a.inject_send_error(libc::EMSGSIZE);
    assert_eq!(a.send(&mut batch).unwrap(), 3);
    assert_eq!((a.stats().gso_fallbacks, a.stats().send_too_large), (5, 1));
}

#[test]
fn a_datagram_above_the_mtu_is_dropped_and_counted() {
    let (a, b) = (bind("127.0.0.1:0"), bind("127.0.0.1:0"));
    let mut batch = SendBatch::new(2, 65_536);
    // No datagram exceeds loopback's MTU: the injected error simulates a smaller MTU on the path.
    push_to(&mut batch, &b, 1200, &pattern(1200, 1));
    push_to(&mut batch, &b, 1000, &pattern(1000, 2));
    a.inject_send_error(libc::EMSGSIZE);
    assert_eq!(a.send(&mut batch).unwrap(), 1);
    assert_eq!(collect(&b, 1000)[0].bytes.len(), 1000);
    assert_eq!((a.stats().send_too_large, a.stats().datagrams_sent), (1, 1));
}

#[test]
fn would_block_keeps_the_rest_in_order() {
    let (a, b) = (bind("127.0.0.1:0"), bind("127.0.0.1:0"));
    let mut batch = SendBatch::new(3, 65_536);
    for seed in 0..3 {
        push_to(&mut batch, &b, 1000, &pattern(3000 - seed * 10, seed));
    }
    a.inject_send_error(libc::EAGAIN);
    assert_eq!(
        a.send(&mut batch).unwrap_err().kind(),
        ErrorKind::WouldBlock
    );
    assert!(!batch.is_empty());
    a.send(&mut batch).unwrap();
    let got = collect(&b, 9000 - 30);
    let expected: Vec<Vec<u8>> = (0..3).map(|seed| pattern(3000 - seed * 10, seed)).collect();
    assert!(
        datagrams(&got)
            == expected
                .iter()
                .flat_map(|m| m.chunks(1000))
                .collect::<Vec<_>>()
    );
}

#[test]
fn icmp_like_errors_are_skipped() {
    let (a, b) = (bind("127.0.0.1:0"), bind("127.0.0.1:0"));
    let mut batch = SendBatch::new(4, 65_536);
    for errno in [
        libc::ECONNREFUSED,
        libc::EHOSTUNREACH,
        libc::EPERM,
        libc::ENOBUFS,
    ] {
        push_to(&mut batch, &b, 100, &pattern(300, 1));
        push_to(&mut batch, &b, 100, &pattern(200, 2));
        a.inject_send_error(errno);
        a.send(&mut batch).unwrap();
        assert!(batch.is_empty());
        assert!(datagrams(&collect(&b, 200)) == pattern(200, 2).chunks(100).collect::<Vec<_>>());
    }
    assert_eq!(a.stats().send_errors, 4);
    // A real error: a socket connected to another one refuses the datagrams, without effect.
    let held = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    held.connect("127.0.0.1:9").unwrap();
    let gone = held.local_addr().unwrap();
    for _ in 0..3 {
        push(&mut batch, to(gone), Ecn::NotEct, 100, &pattern(100, 3));
        a.send(&mut batch).unwrap();
    }
    let error = a.recv(&mut RecvBatch::new(1, 2048)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
}

#[test]
fn a_datagram_to_the_other_family_is_dropped_and_counted() {
    let a = bind("127.0.0.1:0");
    let mut batch = SendBatch::new(1, 2048);
    push(
        &mut batch,
        to("[::1]:9".parse().unwrap()),
        Ecn::NotEct,
        3,
        b"abc",
    );
    a.send(&mut batch).unwrap();
    assert_eq!(a.stats().send_errors, 1);
}

#[test]
fn a_broken_socket_is_reported() {
    let (a, b) = (bind("127.0.0.1:0"), bind("127.0.0.1:0"));
    let mut batch = SendBatch::new(1, 2048);
    push_to(&mut batch, &b, 3, b"abc");
    a.inject_send_error(libc::EBADF);
    assert_eq!(
        a.send(&mut batch).unwrap_err().raw_os_error(),
        Some(libc::EBADF)
    );
}

fn ecn_round_trip(a: &Socket, b: &Socket, remote: SocketAddr) {
    let mut batch = SendBatch::new(4, 65_536);
    for ecn in [Ecn::NotEct, Ecn::Ect0, Ecn::Ect1, Ecn::Ce] {
        push(&mut batch, to(remote), ecn, 500, &pattern(1200, 9));
        a.send(&mut batch).unwrap();
        let got = collect(b, 1200);
        assert!(
            got.iter().all(|m| m.ecn == ecn),
            "{ecn:?} to {remote}: {:?}",
            got[0].ecn
        );
    }
}

#[test]
fn ecn_marks_are_transmitted() {
    let (a, b) = (bind("127.0.0.1:0"), bind("127.0.0.1:0"));
    ecn_round_trip(&a, &b, reachable(&b));
    let (a, b) = (bind("[::1]:0"), bind("[::1]:0"));
    ecn_round_trip(&a, &b, reachable(&b));
    // IPv4 through dual-stack sockets: IPv4 marks on IPv6 sockets.
    let (a, b) = (bind("[::]:0"), bind("[::]:0"));
    let remote = SocketAddr::from((Ipv4Addr::LOCALHOST, b.local_addr().unwrap().port()));
    ecn_round_trip(&a, &b, remote);
}

#[test]
fn a_dual_stack_socket_reports_each_familys_own_addresses() {
    let server = bind("[::]:0");
    let port = server.local_addr().unwrap().port();
    let mut batch = SendBatch::new(2, 65_536);
    for (client, name) in [("127.0.0.1:0", "127.0.0.1"), ("[::1]:0", "::1")] {
        let client = bind(client);
        let ip: IpAddr = name.parse().unwrap();
        push(
            &mut batch,
            to((ip, port).into()),
            Ecn::Ect0,
            400,
            &pattern(1000, 1),
        );
        client.send(&mut batch).unwrap();
        let got = collect(&server, 1000);
        assert_eq!(
            got[0].path,
            Path {
                remote: reachable(&client),
                local: Some(ip)
            }
        );
        // And back, along the path as received.
        push(&mut batch, got[0].path, Ecn::Ect0, 400, &pattern(1000, 2));
        server.send(&mut batch).unwrap();
        let back = collect(&client, 1000);
        assert_eq!(
            back[0].path,
            Path {
                remote: (ip, port).into(),
                local: Some(ip)
            }
        );
        assert!(datagrams(&back) == pattern(1000, 2).chunks(400).collect::<Vec<_>>());
    }
    let (only, other) = one_port_of_each_family();
    let v4 = bind("127.0.0.1:0");
    let port = only.local_addr().unwrap().port();
    push(
        &mut batch,
        to((Ipv4Addr::LOCALHOST, port).into()),
        Ecn::NotEct,
        1,
        b"x",
    );
    v4.send(&mut batch).unwrap();
    assert_eq!(other.recv(&mut [0; 10]).unwrap(), 1);
    assert_eq!(
        only.recv(&mut RecvBatch::new(1, 2048)).unwrap_err().kind(),
        ErrorKind::WouldBlock
    );
}

#[test]
fn the_requested_source_address_is_used() {
    // All of 127.0.0.0/8 is local; without a source the kernel would take 127.0.0.1.
    let (a, b) = (bind("0.0.0.0:0"), bind("127.0.0.1:0"));
    let source = IpAddr::from([127, 0, 0, 3]);
    let mut batch = SendBatch::new(1, 2048);
    push(
        &mut batch,
        Path {
            remote: reachable(&b),
            local: Some(source),
        },
        Ecn::NotEct,
        3,
        b"abc",
    );
    a.send(&mut batch).unwrap();
    let got = collect(&b, 3);
    assert_eq!(got[0].path.remote.ip(), source);
    // A reply to that address shows where it arrived.
    push(&mut batch, to(got[0].path.remote), Ecn::NotEct, 3, b"def");
    b.send(&mut batch).unwrap();
    assert_eq!(collect(&a, 3)[0].path.local, Some(source));
    // The same through a dual-stack socket.
    let c = bind("[::]:0");
    push(
        &mut batch,
        Path {
            remote: reachable(&b),
            local: Some(source),
        },
        Ecn::NotEct,
        3,
        b"ghi",
    );
    c.send(&mut batch).unwrap();
    assert_eq!(collect(&b, 3)[0].path.remote.ip(), source);
    // A foreign address cannot be a source: the datagram is lost and counted.
    push(
        &mut batch,
        Path {
            remote: reachable(&b),
            local: Some([192, 0, 2, 1].into()),
        },
        Ecn::NotEct,
        3,
        b"jkl",
    );
    a.send(&mut batch).unwrap();
    assert_eq!(a.stats().send_errors + a.stats().send_too_large, 1);
}

#[test]
fn empty_datagrams_take_slots_and_are_skipped() {
    let (a, b) = (bind("127.0.0.1:0"), bind("127.0.0.1:0"));
    let mut batch = SendBatch::new(8, 100);
    for _ in 0..3 {
        push_to(&mut batch, &b, 0, b"");
    }
    push_to(&mut batch, &b, 1, b"x");
    assert_eq!(a.send(&mut batch).unwrap(), 4);
    let mut recv = RecvBatch::new(2, 2048);
    // Two slots, both taken by empty datagrams.
    assert_eq!(b.recv(&mut recv).unwrap(), 2);
    assert_eq!(recv.iter_mut().count(), 0);
    assert!(!recv.drained());
    assert_eq!(b.recv(&mut recv).unwrap(), 2);
    assert_eq!(
        recv.iter_mut()
            .map(|b| b.bytes.to_vec())
            .collect::<Vec<_>>(),
        [b"x"]
    );
    assert_eq!(b.recv(&mut recv).unwrap_err().kind(), ErrorKind::WouldBlock);
    assert_eq!(b.stats().datagrams_received, 4);
}

#[test]
fn a_short_receive_reports_that_the_queue_is_drained() {
    let (a, b) = (bind("127.0.0.1:0"), bind("127.0.0.1:0"));
    let mut batch = SendBatch::new(1, 100);
    push_to(&mut batch, &b, 1, b"x");
    a.send(&mut batch).unwrap();
    let mut recv = RecvBatch::new(2, 2048);
    assert_eq!(b.recv(&mut recv).unwrap(), 1);
    assert!(recv.drained());
}

#[test]
fn a_datagram_too_large_for_its_slot_is_dropped_and_counted() {
    let a = bind("127.0.0.1:0");
    let b = Socket::bind(
        "127.0.0.1:0".parse().unwrap(),
        &Options {
            gro: false,
            ..Options::default()
        },
    )
    .unwrap();
    let mut batch = SendBatch::new(2, 2048);
    push_to(&mut batch, &b, 1000, &pattern(1000, 1));
    push_to(&mut batch, &b, 10, &pattern(10, 2));
    a.send(&mut batch).unwrap();
    let mut recv = RecvBatch::new(2, 100);
    assert_eq!(b.recv(&mut recv).unwrap(), 2);
    assert_eq!(
        recv.iter_mut()
            .map(|b| b.bytes.to_vec())
            .collect::<Vec<_>>(),
        [pattern(10, 2)]
    );
    assert_eq!(b.stats().recv_truncated, 1);
}

#[test]
fn drops_due_to_a_full_receive_buffer_are_counted() {
    let a = bind("127.0.0.1:0");
    let options = Options {
        receive_buffer: 4096,
        ..Options::default()
    };
    let b = Socket::bind("127.0.0.1:0".parse().unwrap(), &options).unwrap();
    assert!(b.limits().receive_buffer < 65_536, "{:?}", b.limits());
    let mut batch = SendBatch::new(64, 1200);
    for seed in 0..64 {
        push_to(&mut batch, &b, 1200, &pattern(1200, seed));
    }
    a.send(&mut batch).unwrap();
    let mut recv = RecvBatch::new(4, 65_536);
    let mut got = 0;
    while let Ok(n) = b.recv(&mut recv) {
        got += n as u64;
    }
    // The counter arrives with the next datagram queued after the drops.
    push_to(&mut batch, &b, 1, b"x");
    a.send(&mut batch).unwrap();
    got += b.recv(&mut recv).unwrap() as u64;
    assert!(got < 65);
    assert_eq!(b.stats().recv_dropped, 65 - got);
    assert_eq!(recv.dropped(), 65 - got);
}

#[test]
fn disabled_gso_is_not_used() {
    let a = Socket::bind(
        "127.0.0.1:0".parse().unwrap(),
        &Options {
            gso: false,
            ..Options::default()
        },
    )
    .unwrap();
    let b = bind("127.0.0.1:0");
    assert_eq!(a.limits().gso_segments, 1);
    let mut batch = SendBatch::new(1, 65_536);
    push_to(&mut batch, &b, 1000, &pattern(20_500, 1));
    assert_eq!(a.send(&mut batch).unwrap(), 21);
    assert!(datagrams(&collect(&b, 20_500)) == pattern(20_500, 1).chunks(1000).collect::<Vec<_>>());
    assert_eq!((a.stats().send_calls, a.stats().gso_fallbacks), (2, 0));
}

#[test]
fn ports_are_shared_only_on_request() {
    let options = Options {
        reuse_port: true,
        ..Options::default()
    };
    let a = Socket::bind("127.0.0.1:0".parse().unwrap(), &options).unwrap();
    let address = a.local_addr().unwrap();
    assert!(Socket::bind(address, &options).is_ok());
    assert_eq!(
        Socket::bind(address, &Options::default())
            .unwrap_err()
            .kind(),
        ErrorKind::AddrInUse
    );
}

#[test]
fn a_port_can_be_shared_after_it_was_bound_exclusively() {
    let sharing = Options {
        reuse_port: true,
        ..Options::default()
    };
    let any = "127.0.0.1:0".parse().unwrap();
    let first = Socket::bind(any, &Options::default()).unwrap();
    let address = first.local_addr().unwrap();
    let early = Socket::bind(address, &sharing).unwrap_err();
    assert_eq!(early.kind(), ErrorKind::AddrInUse);
    first.share_port().unwrap();
    let second = Socket::bind(address, &sharing).unwrap();
    // One group, in bind order: the first byte of a connection id decides.
    first.steer(&[0, 1]).unwrap();
    let from = std::net::UdpSocket::bind(any).unwrap();
    for (byte, socket) in [(4, &first), (7, &second)] {
        let datagram = [0x40, byte, 0, 0];
        from.send_to(&datagram, address).unwrap();
        let mut batch = RecvBatch::new(1, 2048);
        assert_eq!(socket.recv(&mut batch).unwrap(), 1);
    }
    // The second stands in for the first, and then the other way round.
    for (targets, socket) in [([1, 1], &second), ([0, 0], &first)] {
        first.steer(&targets).unwrap();
        for byte in [4, 7] {
            from.send_to(&[0x40, byte, 0, 0], address).unwrap();
            let mut batch = RecvBatch::new(1, 2048);
            assert_eq!(socket.recv(&mut batch).unwrap(), 1);
        }
    }
    // A socket bound before another one closes ends up in that one's place: the kernel moves the
    // last of a group into the gap.
    second.steer(&[1, 1]).unwrap();
    let third = Socket::bind(address, &sharing).unwrap();
    drop(first);
    third.steer(&[0, 1]).unwrap();
    for (byte, socket) in [(4, &third), (7, &second)] {
        from.send_to(&[0x40, byte, 0, 0], address).unwrap();
        let mut batch = RecvBatch::new(1, 2048);
        assert_eq!(socket.recv(&mut batch).unwrap(), 1);
    }
}

// test: SECURITY.md row 50: an unknown error costs one datagram, not the socket
#[test]
fn only_a_lost_socket_fails_a_send() {
    let (a, b) = (bind("127.0.0.1:0"), bind("127.0.0.1:0"));
    let mut batch = SendBatch::new(2, 2048);
    let mut send = |errno| {
        push_to(&mut batch, &b, 0, b"lost");
        push_to(&mut batch, &b, 0, b"kept");
        a.inject_send_error(errno);
        let sent = a.send(&mut batch);
        if sent.is_err() {
            // The batch keeps what a broken socket did not accept.
            a.send(&mut batch).unwrap();
            collect(&b, 8);
        }
        sent
    };
    // 133 is the last error number of Linux.
    let mut lost = 0;
    for errno in 1..=133 {
        match errno {
            libc::EAGAIN | libc::EINTR => {}
            libc::EBADF | libc::ENOTSOCK | libc::EFAULT => {
                let error = send(errno).unwrap_err();
                assert!(squall_udp::is_fatal(&error), "{error}");
            }
            errno => {
                assert_eq!(send(errno).unwrap(), 1, "errno {errno}");
                assert!(datagrams(&collect(&b, 4)) == [b"kept"]);
                lost += 1;
            }
        }
    }
    let stats = a.stats();
    // EINVAL and EMSGSIZE count as the datagram's size.
    assert_eq!((stats.send_errors, stats.send_too_large), (lost - 2, 2));
    let known = [libc::EPERM, libc::EIO, libc::ENOMEM, libc::EACCES];
    assert!(known.iter().all(|errno| stats.errors.of(*errno).sends == 1));
    let sum: u64 = stats.errors.iter().map(|count| count.sends).sum();
    assert_eq!(sum, lost, "a full table still counts every error");
    assert!(stats.send_errors_unknown > 80 && stats.send_errors_unknown < stats.send_errors);
}

// test: SECURITY.md row 50: a persistent error is returned to the caller, which can wait
#[test]
fn a_persistent_receive_error_is_returned() {
    let (a, b) = (bind("127.0.0.1:0"), bind("127.0.0.1:0"));
    let mut batch = RecvBatch::new(1, 2048);
    for (errno, calls) in [(libc::EACCES, 16), (libc::ENOKEY, 1), (libc::EINVAL, 16)] {
        let before = b.stats();
        b.inject_recv_error(errno);
        let error = b.recv(&mut batch).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(errno));
        assert!(!squall_udp::is_fatal(&error));
        let stats = b.stats();
        assert_eq!(stats.recv_calls - before.recv_calls, calls);
        assert_eq!(stats.recv_errors - before.recv_errors, calls);
        assert_eq!(stats.errors.of(errno).receives, calls);
    }
    b.inject_recv_error(libc::EBADF);
    assert!(squall_udp::is_fatal(&b.recv(&mut batch).unwrap_err()));
    // The error passes, and nothing was lost meanwhile.
    b.inject_recv_error(0);
    let mut sending = SendBatch::new(1, 2048);
    push_to(&mut sending, &b, 0, b"here");
    a.send(&mut sending).unwrap();
    assert!(datagrams(&collect(&b, 4)) == [b"here"]);
}
