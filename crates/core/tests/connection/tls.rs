//! TLS as connections use it (RFC 9001 §4): which peers are accepted, which always rejected (row 46
//! of the threat table in `SECURITY.md`), and what is known afterwards.

#![allow(clippy::unwrap_used, reason = "a failed step should fail the test")]

use std::sync::Arc;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, date_time_ymd,
};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, HandshakeKind, RootCertStore, ServerConfig};
use squall_core::{
    CloseReason, Connection, EndpointConfig, Event, ExportError, InvalidLength, TransportConfig,
};
use squall_wire::{Header, LongType, VERSION_1, VERSION_2, header};

use crate::common::link::{Host, Link, Policy};

/// An authority.
struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A chain and its key.
type Identity = (CertificateDer<'static>, PrivateKeyDer<'static>);

impl Authority {
    fn new(name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    fn issue(&self, name: &str, last_year: i32) -> Identity {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.not_before = date_time_ymd(2000, 1, 1);
        params.not_after = date_time_ymd(last_year, 1, 1);
        let certificate = params.signed_by(&key, &self.0).unwrap();
        let key = PrivateKeyDer::Pkcs8(key.serialize_der().into());
        (certificate.der().clone(), key)
    }

    fn roots(&self) -> RootCertStore {
        let mut roots = RootCertStore::empty();
        roots.add(self.0.der().clone()).unwrap();
        roots
    }

    fn client(&self) -> ClientConfig {
        let builder = ClientConfig::builder_with_provider(squall_tls::provider())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap();
        let mut config = builder
            .with_root_certificates(self.roots())
            .with_no_client_auth();
        config.alpn_protocols = vec![b"test".to_vec()];
        config.enable_early_data = true;
        config
    }
}

fn server_of((certificate, key): Identity) -> ServerConfig {
    let mut config = ServerConfig::builder_with_provider(squall_tls::provider())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .unwrap();
    config.alpn_protocols = vec![b"test".to_vec()];
    config.max_early_data_size = u32::MAX;
    config
}

fn host(tls: ServerConfig, transport: TransportConfig) -> Host {
    Host::server(EndpointConfig::new([1; 32]), Arc::new(tls), transport)
}

fn link(client: ClientConfig, server: ServerConfig) -> (Link, usize) {
    let transport = TransportConfig::default;
    let mut link = Link::new(Host::client(), host(server, transport()));
    let handle = (link.client).connect(link.now, Arc::new(client), transport());
    (link, handle)
}

/// The TLS alert of a close, and whether the peer raised it.
fn alert(reason: Option<&CloseReason>) -> Option<(u8, bool)> {
    match reason? {
        CloseReason::Transport { code, remote, .. } => Some((code.alert()?, *remote)),
        _ => None,
    }
}

// test: RFC 9001 §4.4
#[test]
fn only_a_client_with_a_valid_certificate_is_accepted() {
    let [authority, clients, strangers] = ["servers", "clients", "strangers"].map(Authority::new);
    let server_identity = authority.issue("localhost", 4000);
    let verifier = rustls::server::WebPkiClientVerifier::builder_with_provider(
        Arc::new(clients.roots()),
        squall_tls::provider(),
    );
    let verifier = verifier.build().unwrap();
    let known = clients.issue("client", 4000);
    let own = known.0.clone();
    for (identity, refused) in [
        (Some(known), None),
        // certificate_required, unknown_ca, certificate_expired
        (None, Some(116)),
        (Some(strangers.issue("client", 4000)), Some(48)),
        (Some(clients.issue("client", 2001)), Some(45)),
    ] {
        let builder = ServerConfig::builder_with_provider(squall_tls::provider())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_client_cert_verifier(Arc::clone(&verifier) as _);
        let chain = vec![server_identity.0.clone()];
        let mut server = builder
            .with_single_cert(chain, server_identity.1.clone_key())
            .unwrap();
        server.alpn_protocols = vec![b"test".to_vec()];
        let builder = ClientConfig::builder_with_provider(squall_tls::provider())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_root_certificates(authority.roots());
        let mut client = match identity {
            Some((certificate, key)) => builder
                .with_client_auth_cert(vec![certificate], key)
                .unwrap(),
            None => builder.with_no_client_auth(),
        };
        client.alpn_protocols = vec![b"test".to_vec()];
        let transport = TransportConfig::default().keep_peer_certificates(true);
        let mut link = Link::new(Host::client(), host(server, transport));
        let transport = TransportConfig::default();
        let handle = (link.client).connect(link.now, Arc::new(client), transport);
        link.run();
        match refused {
            None => {
                assert!(link.server.has(0, &Event::Connected));
                let chain = link.server.connections[&0].peer_certificates();
                assert_eq!(chain.unwrap(), std::slice::from_ref(&own));
            }
            Some(expected) => {
                // The client's own handshake may be complete before the server's verdict arrives.
                assert!(!link.server.has(0, &Event::Connected));
                assert_eq!(alert(link.server.closed(0)), Some((expected, false)));
                assert_eq!(alert(link.client.closed(handle)), Some((expected, true)));
            }
        }
    }
}

// test: RFC 9001 §8.1
#[test]
fn without_a_common_application_protocol_the_handshake_fails() {
    let authority = Authority::new("known");
    let mut client = authority.client();
    client.alpn_protocols = vec![b"babel".to_vec()];
    let (mut link, handle) = link(client, server_of(authority.issue("localhost", 4000)));
    link.run();
    // no_application_protocol
    assert_eq!(alert(link.server.closed(0)), Some((120, false)));
    assert_eq!(alert(link.client.closed(handle)), Some((120, true)));
}

/// A defect of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wrong {
    Name,
    Authority,
    Expired,
}

/// How a client connects to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Plain,
    Retry,
    NewToken,
    /// With a ticket of the genuine server, and early data.
    Resumption,
    CompatibleVersion,
    VersionNegotiation,
}

// test: SECURITY.md row 46, RFC 9001 §4.4
#[test]
fn an_impostor_server_is_rejected_in_every_kind_of_handshake() {
    use Way::{CompatibleVersion, NewToken, Plain, Resumption, Retry, VersionNegotiation};
    let [authority, strangers] = ["known", "strangers"].map(Authority::new);
    for way in [
        Plain,
        Retry,
        NewToken,
        Resumption,
        CompatibleVersion,
        VersionNegotiation,
    ] {
        for (wrong, expected) in [
            (None, 0),
            // bad_certificate, unknown_ca, certificate_expired
            (Some(Wrong::Name), 42),
            (Some(Wrong::Authority), 48),
            (Some(Wrong::Expired), 45),
        ] {
            let client = Arc::new(authority.client());
            let genuine = server_of(authority.issue("localhost", 4000));
            let transport = TransportConfig::default;
            let mut link = Link::new(Host::client(), host(genuine, transport()));
            if matches!(way, NewToken | Resumption) {
                let first = (link.client).connect(link.now, Arc::clone(&client), transport());
                link.run();
                assert!(link.client.has(first, &Event::Connected));
            }
            let identity = match wrong {
                None => authority.issue("localhost", 4000),
                Some(Wrong::Name) => authority.issue("elsewhere.test", 4000),
                Some(Wrong::Authority) => strangers.issue("localhost", 4000),
                Some(Wrong::Expired) => authority.issue("localhost", 2001),
            };
            let versions = match way {
                CompatibleVersion => vec![VERSION_2, VERSION_1],
                VersionNegotiation => vec![VERSION_2],
                _ => transport().versions,
            };
            let ours = match way {
                CompatibleVersion => transport().versions(versions.clone()),
                _ => transport(),
            };
            link.server = host(server_of(identity), transport().versions(versions));
            if way == Retry {
                link.server.policy = Policy::Retry;
            }
            let handle = (link.client).connect(link.now, Arc::clone(&client), ours);
            let early = link.client.connections[&handle].has_early_data();
            assert_eq!(early, matches!(way, Resumption | NewToken));
            link.run();
            let what = format!("{way:?}, {wrong:?}");
            let validated = link.server.validated.unwrap();
            assert_eq!(validated, matches!(way, Retry | NewToken | Resumption));
            if wrong.is_none() {
                assert!(link.client.has(handle, &Event::Connected), "{what}");
                continue;
            }
            assert!(!link.client.has(handle, &Event::Connected), "{what}");
            let raised = alert(link.client.closed(handle));
            assert_eq!(raised, Some((expected, false)), "{what}");
        }
    }
}

/// A ticket means that a server was once verified, but perhaps by a client with other roots.
#[test]
fn a_ticket_from_another_verifier_does_not_bypass_verification() {
    let [authority, strangers] = ["known", "strangers"].map(Authority::new);
    let server = server_of(strangers.issue("localhost", 4000));
    let (careless, mut careful) = (strangers.client(), authority.client());
    careful.resumption = careless.resumption.clone();
    let (mut link, handle) = link(careless.clone(), server);
    link.run();
    assert!(link.client.has(handle, &Event::Connected));
    // The ticket works for the client that has it.
    let connect = |link: &mut Link, client| {
        let transport = TransportConfig::default();
        let handle = (link.client).connect(link.now, Arc::new(client), transport);
        link.run();
        handle
    };
    let again = connect(&mut link, careless);
    let kind = link.client.connections[&again].handshake_kind();
    assert_eq!(kind, Some(HandshakeKind::Resumed));
    let refused = connect(&mut link, careful);
    assert!(!link.client.has(refused, &Event::Connected));
    assert_eq!(alert(link.client.closed(refused)), Some((48, false)));
}

/// A ClientHello with a post-quantum share does not fit one datagram.
#[test]
fn a_client_hello_in_two_initials_may_arrive_in_either_order() {
    for backwards in [false, true] {
        let authority = Authority::new("known");
        let mut client = authority.client();
        client.enable_early_data = false;
        let (mut link, handle) = link(client, server_of(authority.issue("localhost", 4000)));
        let mut flight = link.client.send(link.now);
        assert_eq!(flight.len(), 2);
        for datagram in &flight {
            let parsed = header::parse(datagram, 8).unwrap();
            assert!(matches!(
                parsed,
                Header::Long {
                    ty: LongType::Initial,
                    ..
                }
            ));
        }
        if backwards {
            flight.reverse();
        }
        for datagram in &flight {
            link.server.receive(link.now, link.client.address, datagram);
        }
        link.run();
        assert!(link.client.has(handle, &Event::Connected));
        let ends = [
            &link.client.connections[&handle],
            &link.server.connections[&0],
        ];
        for end in ends {
            let group = end.key_exchange_group();
            assert_eq!(group, Some(rustls::NamedGroup::X25519MLKEM768));
            assert_eq!(end.stats().packets_lost, 0);
            assert_eq!(end.stats().probe_timeouts, 0);
        }
        assert_eq!(link.server.connections.len(), 1);
    }
}

#[test]
fn requested_session_data_is_available_after_the_session_is_dropped() {
    let authority = Authority::new("known");
    let transport = TransportConfig::default();
    let server = server_of(authority.issue("localhost", 4000));
    let mut link = Link::new(Host::client(), host(server, transport.clone()));
    let client = Arc::new(authority.client());
    let handle = (link.client).connect(link.now, client, transport);
    let export = |end: &Connection, label: &[u8], context: &[u8], len| {
        let mut material = vec![0; len];
        let exported = end.export_keying_material(&mut material, label, context);
        exported.map(|()| material)
    };
    let early = export(&link.client.connections[&handle], b"EXPORTER-one", b"", 32);
    assert_eq!(early, Err(ExportError::HandshakeIncomplete));
    link.run();
    let client = &link.client.connections[&handle];
    let server = &link.server.connections[&0];
    // For AES-128-GCM with SHA-256.
    let longest = 255 * 32;
    let (label, too_long) = ([b'a'; 249], [b'a'; 250]);
    let mut seen = Vec::new();
    for (label, context, len) in [
        (&b"EXPORTER-one"[..], &b""[..], 32),
        (b"EXPORTER-one", b"here", 32),
        (b"EXPORTER-two", b"", 20),
        (b"EXPORTER-two", b"", 1),
        (&label, b"", longest),
    ] {
        let material = export(client, label, context, len).unwrap();
        assert_eq!(material.len(), len);
        let again = export(server, label, context, len).unwrap();
        assert_eq!(again, material);
        assert!(!seen.contains(&material), "each exported secret is unique");
        seen.push(material);
    }
    for (label, len, why) in [
        (&b"EXPORTER-one"[..], 0, InvalidLength::Output),
        (b"EXPORTER-one", longest + 1, InvalidLength::Output),
        (&too_long, 32, InvalidLength::Label),
    ] {
        for end in [client, server] {
            let refused = export(end, label, b"", len);
            assert_eq!(refused, Err(ExportError::InvalidLength(why)));
        }
    }
    for end in [client, server] {
        assert_eq!(end.alpn(), Some(&b"test"[..]));
        assert_eq!(end.handshake_kind(), Some(HandshakeKind::Full));
        assert!(end.key_exchange_group().is_some());
        assert_eq!(
            end.peer_certificates(),
            None,
            "certificates are not kept unless configured"
        );
    }
    assert_eq!(server.server_name(), Some("localhost"));
    assert_eq!(client.server_name(), None);
}

#[test]
fn without_a_kept_secret_nothing_is_exported() {
    let authority = Authority::new("forgetful");
    let transport = TransportConfig::default().keep_exporter_secret(false);
    let server = server_of(authority.issue("localhost", 4000));
    let mut link = Link::new(Host::client(), host(server, transport.clone()));
    let client = Arc::new(authority.client());
    let handle = (link.client).connect(link.now, client, transport);
    link.run();
    for end in [
        &link.client.connections[&handle],
        &link.server.connections[&0],
    ] {
        let exported = end.export_keying_material(&mut [0; 32], b"EXPORTER-one", b"");
        assert_eq!(exported, Err(ExportError::NotKept));
    }
}
