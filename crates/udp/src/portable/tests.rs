//! The backend of the other systems over loopback: by itself, and under the socket, which is
//! compiled here once more on top of it.
#![allow(
    clippy::unwrap_used,
    reason = "a test fails by panicking, in its helpers too"
)]

use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use squall_wire::{Ecn, Path};

use super::*;
use crate::batch::{MAX_BUNDLE_BYTES, SendBatch};
use crate::portable as sys;
use common::{
    bind, collect, datagrams, one_port_of_each_family, pattern, push, push_to, reachable, to,
};
use socket::{Options, Socket};

#[path = "../../tests/common/mod.rs"]
mod common;
#[path = "../socket.rs"]
#[allow(
    clippy::duplicate_mod,
    dead_code,
    unreachable_pub,
    reason = "the same socket over the other backend; the tests need not call all of it"
)]
mod socket;

/// Sends one message.
fn send_one(socket: &Socket, path: Path, ecn: Ecn, segment_size: usize, bytes: &[u8]) {
    let mut batch = SendBatch::new(1, MAX_BUNDLE_BYTES);
    push(&mut batch, path, ecn, segment_size, bytes);
    socket.send(&mut batch).unwrap();
    assert!(batch.is_empty());
}

#[test]
fn bundles_arrive_byte_for_byte_and_as_bundles() {
    let (a, b) = (bind("127.0.0.1:0"), bind("127.0.0.1:0"));
    let gso = a.limits().gso_segments > 1;
    let mut batch = SendBatch::new(2, MAX_BUNDLE_BYTES);
    // 44 full datagrams, and 44 whose last one is shorter.
    let (full, short) = (pattern(44 * 1472, 1), pattern(43 * 1472 + 100, 2));
    push_to(&mut batch, &b, 1472, &full);
    push_to(&mut batch, &b, 1472, &short);
    assert_eq!(a.send(&mut batch).unwrap(), if gso { 2 } else { 88 });
    let got = collect(&b, full.len() + short.len());
    let expected: Vec<&[u8]> = full.chunks(1472).chain(short.chunks(1472)).collect();
    assert!(datagrams(&got) == expected, "the datagrams differ");
    assert_eq!(a.stats().datagrams_sent, 88);
    assert_eq!(b.stats().datagrams_received, 88);
    assert_eq!(got[0].path.remote, reachable(&a));
    if gso && b.limits().gro {
        // Loopback hands a GSO bundle to a GRO socket whole, and reports the stride.
        assert_eq!((got.len(), b.stats().messages_received), (2, 2));
    }
}

#[test]
fn the_largest_bundles_are_sent_and_received() {
    let (a, b) = (bind("127.0.0.1:0"), bind("127.0.0.1:0"));
    let most = pattern(a.limits().gso_segments * 20, 3);
    for (bytes, segment) in [(most, 20), (pattern(MAX_BUNDLE_BYTES, 4), 1472)] {
        send_one(&a, to(reachable(&b)), Ecn::NotEct, segment, &bytes);
        assert!(datagrams(&collect(&b, bytes.len())) == bytes.chunks(segment).collect::<Vec<_>>());
    }
    assert_eq!(a.stats().gso_fallbacks, 0);
}

#[test]
fn disabled_gso_is_not_used() {
    let options = Options {
        gso: false,
        ..Options::default()
    };
    let a = Socket::bind("127.0.0.1:0".parse().unwrap(), &options).unwrap();
    let b = bind("127.0.0.1:0");
    assert_eq!(a.limits().gso_segments, 1);
    let bytes = pattern(20_500, 5);
    send_one(&a, to(reachable(&b)), Ecn::NotEct, 1000, &bytes);
    assert!(datagrams(&collect(&b, 20_500)) == bytes.chunks(1000).collect::<Vec<_>>());
    // One call per datagram, each of them counted.
    assert_eq!((a.stats().send_calls, a.stats().messages_sent), (21, 21));
}

#[test]
fn a_receiver_without_gro_gets_single_datagrams() {
    let options = Options {
        gro: false,
        ..Options::default()
    };
    let a = bind("127.0.0.1:0");
    let b = Socket::bind("127.0.0.1:0".parse().unwrap(), &options).unwrap();
    assert!(!b.limits().gro);
    let bytes = pattern(10 * 1200, 3);
    send_one(&a, to(reachable(&b)), Ecn::NotEct, 1200, &bytes);
    let got = collect(&b, bytes.len());
    assert_eq!(b.stats().messages_received, 10);
    assert!(got.len() < 10, "datagrams of one receive call are joined");
    assert!(datagrams(&got) == bytes.chunks(1200).collect::<Vec<_>>());
}

#[test]
fn ecn_marks_are_transmitted_both_ways() {
    let v4 = |socket: &Socket| {
        SocketAddr::from((Ipv4Addr::LOCALHOST, socket.local_addr().unwrap().port()))
    };
    for (a, b, to_v4) in [
        ("127.0.0.1:0", "127.0.0.1:0", false),
        ("[::1]:0", "[::1]:0", false),
        // IPv4 through IPv6's sockets: the marks are IPv4's.
        ("[::]:0", "[::]:0", true),
    ] {
        let (a, b) = (bind(a), bind(b));
        let name = |socket: &Socket| {
            if to_v4 { v4(socket) } else { reachable(socket) }
        };
        for ecn in [Ecn::NotEct, Ecn::Ect0, Ecn::Ect1, Ecn::Ce] {
            for (from, at) in [(&a, &b), (&b, &a)] {
                send_one(from, to(name(at)), ecn, 500, &pattern(1200, 6));
                let got = collect(at, 1200);
                for message in &got {
                    assert_eq!(message.ecn, ecn, "from {}", name(from));
                }
                assert_eq!(got[0].path.remote, name(from));
            }
        }
    }
}

#[test]
fn a_dual_stack_socket_reports_each_familys_own_addresses() {
    let server = bind("[::]:0");
    let port = server.local_addr().unwrap().port();
    for name in ["127.0.0.1", "::1"] {
        let ip: IpAddr = name.parse().unwrap();
        let client = bind(&SocketAddr::from((ip, 0)).to_string());
        let bytes = pattern(1000, 7);
        send_one(&client, to((ip, port).into()), Ecn::Ect0, 400, &bytes);
        let got = collect(&server, 1000);
        let seen = Path {
            remote: reachable(&client),
            local: Some(ip),
        };
        assert_eq!(got[0].path, seen);
        // And back, along the path as received.
        send_one(&server, seen, Ecn::Ect0, 400, &bytes);
        let back = collect(&client, 1000);
        let seen = Path {
            remote: (ip, port).into(),
            local: Some(ip),
        };
        assert_eq!(back[0].path, seen);
        assert!(datagrams(&back) == bytes.chunks(400).collect::<Vec<_>>());
    }
    let (only, other) = one_port_of_each_family();
    let port = only.local_addr().unwrap().port();
    let a = bind("127.0.0.1:0");
    let remote = (Ipv4Addr::LOCALHOST, port).into();
    send_one(&a, to(remote), Ecn::NotEct, 1, b"x");
    assert_eq!(other.recv(&mut [0; 10]).unwrap(), 1);
    let error = only.recv(&mut RecvBatch::new(1, 2048)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
}

#[test]
fn the_requested_source_address_is_used() {
    // All of 127.0.0.0/8 is local; without a source the kernel would take 127.0.0.1.
    let source = IpAddr::from([127, 0, 0, 3]);
    let b = bind("127.0.0.1:0");
    for address in ["0.0.0.0:0", "[::]:0"] {
        let a = bind(address);
        let mut path = to(reachable(&b));
        path.local = Some(source);
        send_one(&a, path, Ecn::NotEct, 3, b"abc");
        let got = collect(&b, 3);
        assert_eq!(got[0].path.remote.ip(), source, "{address}");
        // An answer to that address shows where it arrived.
        send_one(&b, to(got[0].path.remote), Ecn::NotEct, 3, b"def");
        assert_eq!(collect(&a, 3)[0].path.local, Some(source), "{address}");
        // A source of the other family cannot be intended.
        path.local = Some(Ipv6Addr::LOCALHOST.into());
        send_one(&a, path, Ecn::NotEct, 3, b"ghi");
        assert_eq!(collect(&b, 3).len(), 1);
        // One that is not ours is lost and counted.
        path.local = Some([192, 0, 2, 1].into());
        send_one(&a, path, Ecn::NotEct, 3, b"jkl");
        assert_eq!(a.stats().send_errors + a.stats().send_too_large, 1);
    }
    // A destination that the socket's family cannot reach.
    send_one(&b, to("[::1]:9".parse().unwrap()), Ecn::NotEct, 3, b"mno");
    assert_eq!(b.stats().send_errors, 1);
}

#[test]
fn a_gso_failure_falls_back_and_loses_nothing() {
    let (a, b) = (bind("127.0.0.1:0"), bind("127.0.0.1:0"));
    if a.limits().gso_segments == 1 {
        return; // a kernel without GSO: nothing to fall back from
    }
    let mut batch = SendBatch::new(2, MAX_BUNDLE_BYTES);
    let (one, two) = (pattern(5 * 1200, 8), pattern(3 * 1200 + 11, 9));
    push(&mut batch, to(reachable(&b)), Ecn::Ect0, 1200, &one);
    push(&mut batch, to(reachable(&b)), Ecn::Ect0, 1200, &two);
    a.inject_send_error(libc::EIO);
    assert_eq!(a.send(&mut batch).unwrap(), 9);
    let got = collect(&b, one.len() + two.len());
    assert!(datagrams(&got) == one.chunks(1200).chain(two.chunks(1200)).collect::<Vec<_>>());
    assert!(got.iter().all(|message| message.ecn == Ecn::Ect0));
    let stats = a.stats();
    assert_eq!((stats.gso_fallbacks, stats.gso_disabled), (1, 1));
    assert_eq!((stats.datagrams_sent, stats.send_errors), (9, 0));
    // There is no other route that could have refused.
    push(&mut batch, to(reachable(&b)), Ecn::Ect0, 1200, &one);
    assert_eq!(
        (a.send(&mut batch).unwrap(), a.stats().gso_fallbacks),
        (5, 1)
    );
}

#[test]
fn more_segments_than_the_kernel_accepts_are_resent_singly() {
    let (a, b) = (bind("127.0.0.1:0"), bind("127.0.0.1:0"));
    let segments = a.limits().gso_segments;
    if segments == 1 {
        return;
    }
    // Above the maximum of any Linux, 128; quinn-udp reports 64.
    let bytes = pattern(200 * 20, 10);
    send_one(&a, to(reachable(&b)), Ecn::NotEct, 20, &bytes);
    assert!(datagrams(&collect(&b, bytes.len())) == bytes.chunks(20).collect::<Vec<_>>());
    assert_eq!(a.stats().gso_fallbacks, 1);
    assert_eq!(a.limits().gso_segments, segments);
}

#[test]
fn would_block_keeps_the_rest_in_order() {
    let (a, b) = (bind("127.0.0.1:0"), bind("127.0.0.1:0"));
    let mut batch = SendBatch::new(3, 4096);
    let messages: Vec<Vec<u8>> = (0..3).map(|seed| pattern(3000 - seed, seed)).collect();
    for bytes in &messages {
        push_to(&mut batch, &b, 1000, bytes);
    }
    a.inject_send_error(libc::EAGAIN);
    let error = a.send(&mut batch).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    assert!(!batch.is_empty());
    a.send(&mut batch).unwrap();
    let expected: Vec<&[u8]> = messages.iter().flat_map(|m| m.chunks(1000)).collect();
    assert!(datagrams(&collect(&b, 9000 - 3)) == expected);
    let error = b.recv(&mut RecvBatch::new(1, 2048)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
}

#[test]
fn refused_datagrams_are_dropped_and_counted_and_a_broken_socket_is_reported() {
    let (a, b) = (bind("127.0.0.1:0"), bind("127.0.0.1:0"));
    let send = |error| {
        let mut batch = SendBatch::new(2, 2048);
        push_to(&mut batch, &b, 0, b"lost");
        push_to(&mut batch, &b, 0, b"kept");
        a.inject_send_error(error);
        a.send(&mut batch)
    };
    for error in [
        libc::ECONNREFUSED,
        libc::EHOSTDOWN,
        libc::ENOBUFS,
        libc::EIO,
    ] {
        assert_eq!(send(error).unwrap(), 1);
        assert!(datagrams(&collect(&b, 4)) == [b"kept"]);
    }
    assert_eq!(a.stats().send_errors, 4);
    assert_eq!(send(libc::EMSGSIZE).unwrap(), 1);
    assert_eq!(a.stats().send_too_large, 1);
    assert_eq!(
        send(libc::EBADF).unwrap_err().raw_os_error(),
        Some(libc::EBADF)
    );
}

#[test]
fn errors_are_classified() {
    let sorted = |errno| classify(&io::Error::from_raw_os_error(errno));
    assert_eq!(sorted(libc::EAGAIN), Failure::WouldBlock);
    assert_eq!(sorted(libc::EINTR), Failure::Interrupted);
    assert_eq!(sorted(libc::EIO), Failure::Gso);
    assert_eq!(sorted(libc::EMSGSIZE), Failure::Size);
    assert_eq!(sorted(libc::EINVAL), Failure::Size);
    for lost in [
        libc::EPERM,
        libc::ENETUNREACH,
        libc::EADDRNOTAVAIL,
        libc::EAFNOSUPPORT,
    ] {
        assert_eq!(sorted(lost), Failure::Lost);
    }
    for broken in [libc::EBADF, libc::ENOTSOCK, libc::EFAULT] {
        assert_eq!(sorted(broken), Failure::Fatal);
    }
    // A socket that iOS took back, and an error without a number.
    for unknown in [libc::ENOTCONN, libc::EPIPE] {
        assert_eq!(sorted(unknown), Failure::Unknown);
    }
    assert_eq!(classify(&io::Error::other("?")), Failure::Unknown);
    // A real one: no IPv4 datagram is that long.
    let a = socket2::Socket::from(UdpSocket::bind("127.0.0.1:0").unwrap());
    let (a, _) = configure(a, false, true).unwrap();
    let message = Outgoing {
        path: to(a.local_addr().unwrap()),
        ecn: Ecn::NotEct,
        segment_size: None,
        bytes: &[0; MAX_BUNDLE_BYTES + 1],
    };
    let sent = send(&a, false, std::iter::once(message));
    assert_eq!(sent.messages, 0);
    assert_eq!(classify(&sent.result.unwrap_err()), Failure::Size);
}

#[test]
fn a_receive_call_fills_its_slots_and_reports_an_empty_queue() {
    let (a, b) = (bind("127.0.0.1:0"), bind("127.0.0.1:0"));
    let mut batch = SendBatch::new(20, 64);
    for seed in 0..20 {
        // Empty datagrams count, though they have no content to check.
        let bytes = pattern(seed % 4, seed);
        push_to(&mut batch, &b, 0, &bytes);
    }
    a.send(&mut batch).unwrap();
    let mut recv = RecvBatch::new(40, 2048);
    assert_eq!(b.recv(&mut recv).unwrap(), MESSAGES);
    assert!(!recv.drained());
    assert_eq!(recv.iter_mut().count(), 12);
    assert_eq!(b.recv(&mut recv).unwrap(), 20 - MESSAGES);
    assert!(recv.drained());
    assert_eq!(b.stats().datagrams_received, 20);
}

/// The behaviour of systems that have no call for several messages.
#[test]
fn a_batch_is_filled_one_message_per_call() {
    let (a, b) = (
        UdpSocket::bind("127.0.0.1:0").unwrap(),
        UdpSocket::bind("127.0.0.1:0").unwrap(),
    );
    let (b, _) = configure(b.into(), false, true).unwrap();
    let one = |slices: &mut [IoSliceMut<'_>], metas: &mut [RecvMeta]| {
        assert_eq!((slices.len(), metas.len()), (1, 1));
        b.state.recv((&b.socket).into(), slices, metas)
    };
    for len in [100, 50, 7] {
        a.send_to(&pattern(len, len), b.local_addr().unwrap())
            .unwrap();
    }
    // Two slots: full before the queue is empty.
    let mut recv = RecvBatch::new(2, 2048);
    let got = fill(&mut recv, 1, one).unwrap();
    assert_eq!((got.messages, got.datagrams, got.drained), (2, 2, false));
    recv.received(got.messages, got.drained, 0);
    let bytes: Vec<Vec<u8>> = (recv.iter_mut())
        .flat_map(|b| b.bytes.chunks(b.segment_size.into()))
        .map(<[u8]>::to_vec)
        .collect();
    assert_eq!(bytes, [pattern(100, 100), pattern(50, 50)]);
    let got = fill(&mut recv, 1, one).unwrap();
    assert_eq!((got.messages, got.drained, got.errors), (1, true, 0));
    let error = fill(&mut recv, 1, one).unwrap_err();
    assert_eq!(classify(&error), Failure::WouldBlock);
}

#[test]
fn errors_within_a_batch_lose_no_message() {
    let answers = |script: Vec<Result<usize, i32>>| {
        let mut script = script.into_iter();
        move |_: &mut [IoSliceMut<'_>], metas: &mut [RecvMeta]| {
            let len = script
                .next()
                .expect("no call follows the last scripted one")
                .map_err(io::Error::from_raw_os_error)?;
            (metas[0].len, metas[0].stride) = (len, len);
            Ok(1)
        }
    };
    let mut recv = RecvBatch::new(3, 2048);
    // An ICMP message ends the call; the datagram before it stays.
    let got = fill(&mut recv, 1, answers(vec![Ok(5), Err(libc::ECONNREFUSED)])).unwrap();
    assert_eq!((got.messages, got.errors, got.drained), (1, 1, false));
    // If it is already the first answer, it is the call's result.
    let error = fill(&mut recv, 1, answers(vec![Err(libc::ECONNREFUSED)])).unwrap_err();
    assert_eq!(classify(&error), Failure::Lost);
    // One that did not fit takes a slot and leaves it empty.
    let script = vec![Err(libc::EMSGSIZE), Ok(9), Err(libc::EAGAIN)];
    let got = fill(&mut recv, 1, answers(script)).unwrap();
    assert_eq!((got.messages, got.truncated, got.datagrams), (2, 1, 1));
    assert!(got.drained);
    recv.received(got.messages, got.drained, 0);
    let lens: Vec<usize> = recv.iter_mut().map(|b| b.bytes.len()).collect();
    assert_eq!(lens, [9]);
}

#[test]
fn a_bundle_is_described_by_its_stride() {
    let mut meta = RecvMeta::default();
    meta.addr = "[::ffff:192.0.2.1]:443".parse().unwrap();
    meta.dst_ip = Some("::ffff:192.0.2.9".parse().unwrap());
    (meta.len, meta.stride) = (3001, 1000);
    let mut received = Received::default();
    let entry = describe(&meta, &mut received);
    assert_eq!((entry.segment_size, entry.len), (1000, 3001));
    assert_eq!(received.datagrams, 4);
    assert_eq!(entry.path.remote, "192.0.2.1:443".parse().unwrap());
    assert_eq!(entry.path.local, Some([192, 0, 2, 9].into()));
    assert_eq!(entry.ecn, Ecn::NotEct);
    // A link-local peer is identified only together with its link.
    let SocketAddr::V6(link_local) = peer("[fe80::1%3]:443".parse().unwrap()) else {
        panic!("not IPv6");
    };
    assert_eq!(link_local.scope_id(), 3);
}

#[test]
fn buffers_are_enlarged_up_to_the_systems_limit() {
    let bound = |bytes| {
        let options = Options {
            receive_buffer: bytes,
            send_buffer: bytes,
            ..Options::default()
        };
        let socket = Socket::bind("127.0.0.1:0".parse().unwrap(), &options).unwrap();
        socket.limits()
    };
    let (small, large) = (bound(16 << 10), bound(128 << 10));
    // Linux reports double the size that it grants.
    assert_eq!(
        (small.receive_buffer, small.send_buffer),
        (32 << 10, 32 << 10)
    );
    assert!(large.receive_buffer > small.receive_buffer);
    assert!(large.send_buffer > small.send_buffer);
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
    let error = Socket::bind(address, &Options::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::AddrInUse);
}
