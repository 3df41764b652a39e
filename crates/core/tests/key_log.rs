//! The key log (draft-ietf-tls-keylogfile): what a packet analyser needs.

#![allow(clippy::unwrap_used, reason = "a failed step should fail the test")]

mod common;

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::Arc;

use common::link::{Host, Link};
use common::tls;
use hmac::{Hmac, KeyInit, Mac};
use rustls::KeyLogFile;
use sha2::Sha256;
use squall_core::{EndpointConfig, Event, TransportConfig};
use squall_protect::{
    HeaderKey, HeaderKeyMaterial, KeyMaterial, Outcome, PacketKey, PacketSpan, Suite,
};

/// The test below runs itself with this in its environment: the file's name must be set when a
/// process starts.
const CHILD: &str = "SQUALL_KEY_LOG_TEST";

fn unhex(text: &str) -> Vec<u8> {
    let byte = |i| u8::from_str_radix(&text[i..i + 2], 16).unwrap();
    (0..text.len()).step_by(2).map(byte).collect()
}

/// HKDF-Expand-Label of at most one block (RFC 8446 §7.1, RFC 5869 §2.3).
fn expand(secret: &[u8], label: &str, len: usize) -> Vec<u8> {
    let mut mac = <Hmac<Sha256> as KeyInit>::new_from_slice(secret).unwrap();
    mac.update(&[0, len as u8, 6 + label.len() as u8]);
    mac.update(b"tls13 ");
    mac.update(label.as_bytes());
    mac.update(&[0, 1]);
    mac.finalize().into_bytes()[..len].to_vec()
}

/// Two connections, the second with early data; then the log is read, and a packet of the server
/// opened with it.
fn connect_and_look(path: &str) {
    let (client, server) = tls();
    let (mut client, mut server) = ((*client).clone(), (*server).clone());
    client.key_log = Arc::new(KeyLogFile::new());
    server.key_log = Arc::new(KeyLogFile::new());
    client.enable_early_data = true;
    server.max_early_data_size = u32::MAX;
    let client = Arc::new(client);
    let transport = TransportConfig::default;
    let server = Host::server(EndpointConfig::new([1; 32]), Arc::new(server), transport());
    let mut link = Link::new(Host::client(), server);
    for _ in 0..2 {
        link.to_client.clear();
        let handle = (link.client).connect(link.now, Arc::clone(&client), transport());
        link.run();
        assert!(link.client.has(handle, &Event::Connected));
    }
    let text = std::fs::read_to_string(path).unwrap();
    // By the client's random and the label: the secret, which both ends log.
    let mut secrets: BTreeMap<(&str, &str), Vec<&str>> = BTreeMap::new();
    let mut order = Vec::new();
    for line in text.lines() {
        let fields: Vec<&str> = line.split(' ').collect();
        let [label, random, secret] = fields[..] else {
            panic!("{line}")
        };
        assert_eq!((random.len(), secret.len()), (64, 64), "{line}");
        secrets.entry((random, label)).or_default().push(secret);
        if !order.contains(&random) {
            order.push(random);
        }
    }
    assert!(secrets.values().all(|s| s.len() == 2 && s[0] == s[1]));
    let usual = [
        "CLIENT_HANDSHAKE_TRAFFIC_SECRET",
        "CLIENT_TRAFFIC_SECRET_0",
        "EXPORTER_SECRET",
        "SERVER_HANDSHAKE_TRAFFIC_SECRET",
        "SERVER_TRAFFIC_SECRET_0",
    ];
    let labels = |random: &str| -> Vec<&str> {
        let of = secrets.keys().filter(|(r, _)| *r == random);
        of.map(|(_, label)| *label).collect()
    };
    assert_eq!(labels(order[0]), usual);
    let early = [&["CLIENT_EARLY_TRAFFIC_SECRET"][..], &usual].concat();
    assert_eq!(labels(order[1]), early);

    // As a tool would: RFC 9001 §5.1.
    let secret = unhex(secrets[&(order[1], "SERVER_TRAFFIC_SECRET_0")][0]);
    let key = KeyMaterial::new(
        Suite::Aes128Gcm,
        &expand(&secret, "quic key", 16),
        &expand(&secret, "quic iv", 12).try_into().unwrap(),
    );
    let hp = HeaderKeyMaterial::new(Suite::Aes128Gcm, &expand(&secret, "quic hp", 16));
    let (key, hp) = (PacketKey::new(&key.unwrap()), HeaderKey::new(&hp.unwrap()));
    let mut short = (link.to_client.iter())
        .find(|d| d[0] & 0x80 == 0)
        .unwrap()
        .clone();
    let mut spans = [PacketSpan::new(0, short.len() as u32, 9)];
    hp.unprotect(&mut short, &mut spans);
    key.open(&mut short, &mut spans, 0);
    assert_eq!(spans[0].outcome, Outcome::Open);
}

#[test]
fn secrets_of_all_levels_are_logged_and_open_packets() {
    if let Ok(path) = std::env::var("SSLKEYLOGFILE")
        && std::env::var(CHILD).is_ok()
    {
        connect_and_look(&path);
        return;
    }
    let path = std::env::temp_dir().join(format!("squall-key-log-{}", std::process::id()));
    let done = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "secrets_of_all_levels_are_logged_and_open_packets",
        ])
        .env("SSLKEYLOGFILE", &path)
        .env(CHILD, "1")
        .output()
        .unwrap();
    let _ = std::fs::remove_file(&path);
    let said = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success(), "{said}");
    assert!(said.contains("1 passed"), "{said}");
}
