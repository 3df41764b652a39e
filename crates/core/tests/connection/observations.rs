//! What a connection reports about its life to an observing owner.

#![allow(clippy::unwrap_used, reason = "a failed step should fail the test")]

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use squall_core::{CloseReason, CongestionCause, EndpointConfig, Observation, TransportConfig};
use squall_wire::{Direction, Side, VERSION_1, VERSION_2};

use crate::common::link::{Host, Link, Policy};
use crate::common::{Pair, tls};

fn link(client: TransportConfig, server: TransportConfig) -> (Link, usize) {
    let (client_tls, server_tls) = tls();
    let server = Host::server(EndpointConfig::new([1; 32]), server_tls, server);
    let mut link = Link::new(Host::client(), server);
    let handle = link.client.connect(link.now, client_tls, client);
    (link, handle)
}

/// The names of an end's observations.
fn names(host: &Host) -> Vec<String> {
    let name = |observation: &Observation| {
        let text = format!("{observation:?}");
        text.split(['(', ' ']).next().unwrap().to_owned()
    };
    host.observations.iter().map(|(_, one)| name(one)).collect()
}

/// The first observation that `pick` selects.
fn find<R>(host: &Host, pick: impl Fn(&Observation) -> Option<R>) -> R {
    let found = host.observations.iter().find_map(|(_, one)| pick(one));
    found.unwrap_or_else(|| panic!("not among {:?}", host.observations))
}

#[test]
fn the_life_of_a_connection_is_reported_in_order() {
    let versions = |list: [u32; 2]| TransportConfig::default().versions(list.to_vec());
    let (mut link, handle) = link(
        versions([VERSION_2, VERSION_1]),
        versions([VERSION_2, VERSION_1]),
    );
    link.run();
    for host in [&link.client, &link.server] {
        assert_eq!(
            names(host)[..3],
            ["VersionChanged", "HandshakeCompleted", "HandshakeConfirmed"]
        );
        let change = find(host, |one| match one {
            Observation::VersionChanged(change) => Some((change.from, change.to)),
            _ => None,
        });
        assert_eq!(change, (VERSION_1, VERSION_2));
        let done = find(host, |one| match one {
            Observation::HandshakeCompleted(done) => Some(done.clone()),
            _ => None,
        });
        assert_eq!((done.version, done.resumed), (VERSION_2, false));
        assert_eq!(
            (done.alpn.as_deref(), done.early_data),
            (Some(&b"test"[..]), None)
        );
        let name = (host.address == link.server.address).then_some("localhost");
        assert_eq!(done.server_name.as_deref(), name);
        assert!(done.duration < Duration::from_secs(1));
    }

    // The path MTU, keys and the end.
    let client = link.client.connections.get_mut(&handle).unwrap();
    let _ = client.max_datagram_size();
    link.run();
    let mtu = find(&link.client, |one| match one {
        Observation::MtuChanged(change) => Some((change.before, change.max_udp_payload)),
        _ => None,
    });
    assert!(mtu.0 == 1200 && mtu.1 > 1400, "{mtu:?}");
    let (client, now) = (link.client.connections.get_mut(&handle).unwrap(), link.now);
    assert!(client.force_key_update(now));
    client.ping();
    link.run();
    for (host, theirs) in [(&link.client, false), (&link.server, true)] {
        let update = find(host, |one| match one {
            Observation::KeysUpdated(update) => Some((update.by_peer, update.updates)),
            _ => None,
        });
        assert_eq!(update, (theirs, 1));
    }
    let (client, now) = (link.client.connections.get_mut(&handle).unwrap(), link.now);
    client.close(now, 7, b"done");
    link.run();
    for (host, theirs) in [(&link.client, false), (&link.server, true)] {
        let Some((_, Observation::Closed(closed))) = host.observations.last() else {
            panic!("{:?}", host.observations.last());
        };
        let expected = CloseReason::Application {
            code: 7,
            reason: Bytes::from_static(b"done"),
            remote: theirs,
        };
        assert_eq!(closed.reason, expected);
        let ends = names(host).iter().filter(|name| *name == "Closed").count();
        assert_eq!(ends, 1);
    }
}

#[test]
fn a_client_reports_version_changes_and_retries() {
    let only = |version| TransportConfig::default().versions(vec![version]);
    let (mut other, _) = link(TransportConfig::default(), only(VERSION_2));
    other.run();
    assert_eq!(
        names(&other.client)[..2],
        ["VersionChanged", "HandshakeCompleted"]
    );
    let (mut retried, _) = link(TransportConfig::default(), TransportConfig::default());
    retried.server.policy = Policy::Retry;
    retried.run();
    assert_eq!(
        names(&retried.client)[..2],
        ["RetryReceived", "HandshakeCompleted"]
    );
    assert_eq!(names(&retried.server)[0], "HandshakeCompleted");
}

#[test]
fn early_data_is_reported_with_its_outcome() {
    let (client_tls, server_tls) = tls();
    let (mut client_tls, mut server_tls) = ((*client_tls).clone(), (*server_tls).clone());
    client_tls.enable_early_data = true;
    server_tls.max_early_data_size = u32::MAX;
    let (client_tls, server_tls) = (Arc::new(client_tls), Arc::new(server_tls));
    let transport = TransportConfig::default;
    let server = Host::server(EndpointConfig::new([1; 32]), server_tls, transport());
    let mut link = Link::new(Host::client(), server);
    link.client
        .connect(link.now, Arc::clone(&client_tls), transport());
    link.run();
    link.client.observations.clear();
    link.server.observations.clear();
    let handle = link.client.connect(link.now, client_tls, transport());
    let client = link.client.connections.get_mut(&handle).unwrap();
    let id = client.open(Direction::Unidirectional).unwrap();
    client.write(id, &mut Bytes::from_static(b"early")).unwrap();
    link.run();
    for host in [&link.client, &link.server] {
        assert_eq!(
            names(host)[..2],
            ["EarlyDataAnswered", "HandshakeCompleted"]
        );
        let done = find(host, |one| match one {
            Observation::HandshakeCompleted(done) => Some((done.resumed, done.early_data)),
            _ => None,
        });
        assert_eq!(done, (true, Some(true)));
    }
}

#[test]
fn losses_are_reported_with_both_windows_and_a_dead_path_as_persistent_congestion() {
    let (mut link, handle) = link(TransportConfig::default(), TransportConfig::default());
    link.run();
    let client = link.client.connections.get_mut(&handle).unwrap();
    let before = client.stats();
    let id = client.open(Direction::Unidirectional).unwrap();
    let data = Bytes::from(vec![7; 100_000]);
    client.write(id, &mut data.clone()).unwrap();
    let mut sent = 0;
    link.run_losing(|to_server, datagram| {
        sent += u32::from(to_server && datagram.len() > 1000);
        to_server && (3..6).contains(&sent)
    });
    let stats = link.client.connections[&handle].stats();
    assert_eq!(stats.congestion_events, 1);
    let event = find(&link.client, |one| match one {
        Observation::Congestion(event) => Some(event.clone()),
        _ => None,
    });
    assert_eq!(
        (event.cause, event.packets_lost),
        (CongestionCause::Loss, 3)
    );
    assert!(event.window < event.window_before, "{event:?}");
    assert!(event.window_before >= before.congestion_window, "{event:?}");
    let count = |link: &Link| {
        names(&link.client)
            .iter()
            .filter(|n| *n == "Congestion")
            .count()
    };
    assert_eq!(count(&link), 1, "once an episode");

    // Nothing arrives for many probe timeouts, then everything does.
    let client = link.client.connections.get_mut(&handle).unwrap();
    client.write(id, &mut data.clone()).unwrap();
    for _ in 0..12 {
        link.run_losing(|to_server, _| to_server);
        link.wait();
    }
    link.run();
    let causes: Vec<CongestionCause> = (link.client.observations.iter())
        .filter_map(|(_, one)| match one {
            Observation::Congestion(event) => Some(event.cause),
            _ => None,
        })
        .collect();
    assert!(
        causes.contains(&CongestionCause::PersistentCongestion),
        "{causes:?}"
    );
}

#[test]
fn no_observations_are_kept_for_an_owner_that_does_not_observe() {
    let mut pair = Pair::new();
    pair.run();
    for side in [Side::Client, Side::Server] {
        assert_eq!(pair.connection(side).poll_observation(), None);
        pair.connection(side).observe();
    }
    let now = pair.now;
    pair.connection(Side::Client).close(now, 0, b"");
    let last = pair.connection(Side::Client).poll_observation();
    assert!(matches!(last, Some(Observation::Closed(_))), "{last:?}");
}
