//! Handshakes between two sessions in memory. Key material counts as equal on both sides if one
//! side's remote keys open what the other side's local keys protect.

#![expect(clippy::unwrap_used, reason = "a test's way to fail")]

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use rustls::crypto::{CipherSuiteCommon, CryptoProvider};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName};
use rustls::{
    CipherSuite, ClientConfig, HandshakeKind, RootCertStore, ServerConfig, SupportedCipherSuite,
    Tls13CipherSuite,
};
use squall_protect::{
    HeaderKey, HeaderKeyMaterial, KeyMaterial, Outcome, PacketKey, PacketSpan, TAG_LEN,
};
use squall_tls::{Alert, Error, KeyChange, LevelMaterial, Secrets, Session};

const VERSION_1: u32 = 1;
const VERSION_2: u32 = 0x6b33_43cf;

/// An authority and its certificate for "server.test".
struct Pki {
    authority: CertificateDer<'static>,
    leaf: CertificateDer<'static>,
    key: PrivatePkcs8KeyDer<'static>,
}

fn pki() -> Pki {
    pki_of("Test authority")
}

fn pki_of(authority: &str) -> Pki {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params
        .distinguished_name
        .push(DnType::CommonName, authority);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let leaf = CertificateParams::new(vec!["server.test".to_owned()])
        .unwrap()
        .signed_by(&key, &authority)
        .unwrap();
    Pki {
        authority: authority.der().clone(),
        leaf: leaf.der().clone(),
        key: key.serialize_der().into(),
    }
}

fn server_config(pki: &Pki, provider: Arc<CryptoProvider>, alpn: &[&str]) -> Arc<ServerConfig> {
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![pki.leaf.clone()], pki.key.clone_key().into())
        .unwrap();
    config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
    Arc::new(config)
}

fn client_config(
    authority: &CertificateDer<'static>,
    provider: Arc<CryptoProvider>,
    alpn: &[&str],
) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(authority.clone()).unwrap();
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
    Arc::new(config)
}

fn server_name() -> ServerName<'static> {
    "server.test".try_into().unwrap()
}

/// One end and what its handshake produced.
struct End {
    session: Session,
    handshake: Option<LevelMaterial>,
    one_rtt: Option<(LevelMaterial, Secrets)>,
}

impl End {
    fn new(session: Session) -> Self {
        Self {
            session,
            handshake: None,
            one_rtt: None,
        }
    }

    /// Writes until nothing is left; one entry for each level that had bytes.
    fn flush(&mut self) -> Vec<Vec<u8>> {
        let mut levels = Vec::new();
        loop {
            let mut bytes = Vec::new();
            let change = self.session.write(&mut bytes).unwrap();
            let done = change.is_none() && bytes.is_empty();
            if !bytes.is_empty() {
                levels.push(bytes);
            }
            match change {
                Some(KeyChange::Handshake(level)) => {
                    assert!(self.handshake.replace(level).is_none());
                }
                Some(KeyChange::OneRtt(level, secrets)) => {
                    assert!(self.one_rtt.replace((level, secrets)).is_none());
                }
                None => {}
            }
            if done {
                return levels;
            }
        }
    }
}

/// Runs the handshake until both sides are silent. On failure: the alert, and which side raised it.
fn shake(client: &mut End, server: &mut End) -> Result<(), (&'static str, Alert)> {
    loop {
        let from_client = client.flush();
        for level in &from_client {
            // Bytes arrive in any portions within a level.
            for part in level.chunks(100) {
                server.session.read(part).map_err(|e| ("server", e))?;
            }
        }
        let from_server = server.flush();
        for level in &from_server {
            client.session.read(level).map_err(|e| ("client", e))?;
        }
        if from_client.is_empty() && from_server.is_empty() {
            return Ok(());
        }
    }
}

#[expect(clippy::needless_pass_by_value, reason = "shorter where it is called")]
fn connect(version: u32, client: Arc<ClientConfig>, server: Arc<ServerConfig>) -> (End, End) {
    (
        End::new(
            Session::client(
                &client,
                version,
                server_name(),
                b"client parameters".to_vec(),
            )
            .unwrap(),
        ),
        End::new(
            Session::server(
                &server,
                version,
                version,
                b"server parameters".to_vec(),
                &[],
            )
            .unwrap(),
        ),
    )
}

const PACKET_NUMBER: u8 = 7;
const MESSAGE: &[u8] = b"the same key on both sides";

/// Protects a short-header packet with one side's keys, opens it with the other's.
fn agree(
    (seal, mask): (&KeyMaterial, &HeaderKeyMaterial),
    (open, unmask): (&KeyMaterial, &HeaderKeyMaterial),
) -> bool {
    // First byte 0x40: short header, 1-byte packet number, which is the second byte.
    let mut buf = vec![0x40, PACKET_NUMBER];
    buf.extend_from_slice(MESSAGE);
    buf.extend_from_slice(&[0; TAG_LEN]);
    let len = u32::try_from(buf.len()).unwrap();
    let mut spans = [PacketSpan::new(0, len, 1)];
    spans[0].header_len = 2;
    spans[0].packet_number = PACKET_NUMBER.into();
    PacketKey::new(seal).seal(&HeaderKey::new(mask), &mut buf, &mut spans, &[]);
    assert_eq!(spans[0].outcome, Outcome::Open, "sealed");
    assert_ne!(&buf[2..2 + MESSAGE.len()], MESSAGE);

    let mut spans = [PacketSpan::new(0, len, 1)];
    HeaderKey::new(unmask).unprotect(&mut buf, &mut spans);
    if buf[..2] != [0x40, PACKET_NUMBER] {
        return false;
    }
    PacketKey::new(open).open(&mut buf, &mut spans, 0);
    spans[0].outcome == Outcome::Open && &buf[2..2 + MESSAGE.len()] == MESSAGE
}

fn assert_level_agrees(a: &LevelMaterial, b: &LevelMaterial) {
    for (sender, receiver) in [(a, b), (b, a)] {
        assert!(agree(
            (&sender.local.packet, &sender.local.header),
            (&receiver.remote.packet, &receiver.remote.header),
        ));
    }
    // The directions must differ, or the check above would prove little.
    assert!(!agree(
        (&a.local.packet, &a.local.header),
        (&b.local.packet, &b.local.header),
    ));
}

/// test: RFC 9001 §4.1.4, §6.1
fn full_handshake(version: u32, provider: &Arc<CryptoProvider>) {
    let first_group = provider.kx_groups[0].name();
    let pki = pki();
    let (mut client, mut server) = connect(
        version,
        client_config(&pki.authority, provider.clone(), &["one", "two"]),
        server_config(&pki, provider.clone(), &["two", "three"]),
    );
    assert!(client.session.is_handshaking() && server.session.is_handshaking());
    shake(&mut client, &mut server).unwrap();

    for (end, peer_parameters) in [
        (&client, b"server parameters"),
        (&server, b"client parameters"),
    ] {
        assert!(!end.session.is_handshaking());
        assert_eq!(end.session.alpn(), Some(&b"two"[..]));
        assert_eq!(
            end.session.peer_transport_parameters(),
            Some(&peer_parameters[..])
        );
        // The provider's first choice; a built-in provider is tested for its own first choice.
        assert_eq!(end.session.key_exchange_group(), Some(first_group));
        assert_eq!(end.session.handshake_kind(), Some(HandshakeKind::Full));
    }
    assert_eq!(server.session.server_name(), Some("server.test"));
    assert_eq!(client.session.server_name(), None);
    assert_eq!(client.session.peer_certificates().unwrap()[0], pki.leaf);
    assert!(server.session.peer_certificates().is_none());

    let exported = [&client, &server].map(|end| {
        let mut out = [0; 32];
        let secret = end.session.exporter_secret().unwrap();
        secret.export(&mut out, b"squall test", b"").unwrap();
        out
    });
    assert_eq!(exported[0], exported[1]);
    assert_ne!(exported[0], [0; 32]);

    assert_level_agrees(&client.handshake.unwrap(), &server.handshake.unwrap());
    let (client_level, mut client_secrets) = client.one_rtt.unwrap();
    let (server_level, mut server_secrets) = server.one_rtt.unwrap();
    assert_level_agrees(&client_level, &server_level);

    let mut last = client_level.local.packet;
    for _ in 0..3 {
        let (client_local, client_remote) = client_secrets.next();
        let (server_local, server_remote) = server_secrets.next();
        // RFC 9001 §6.1: the header protection keys stay.
        let client_header = &client_level.local.header;
        let server_header = &server_level.local.header;
        assert!(agree(
            (&client_local, client_header),
            (&server_remote, &server_level.remote.header),
        ));
        assert!(agree(
            (&server_local, server_header),
            (&client_remote, &client_level.remote.header),
        ));
        assert!(!agree(
            (&client_local, client_header),
            (&last, client_header)
        ));
        last = client_local;
    }
}

#[test]
fn both_sides_agree_in_version_1() {
    full_handshake(VERSION_1, &squall_tls::provider());
}

#[test]
fn both_sides_agree_in_version_2() {
    full_handshake(VERSION_2, &squall_tls::provider());
}

#[test]
fn both_sides_agree_with_each_suite() {
    for index in 0..3 {
        let mut provider = squall_tls::provider().as_ref().clone();
        provider.cipher_suites = vec![provider.cipher_suites[index]];
        full_handshake(VERSION_1, &Arc::new(provider));
    }
}

#[test]
fn both_sides_agree_with_each_provider_wrapped_or_not() {
    let providers = [
        rustls::crypto::aws_lc_rs::default_provider(),
        rustls::crypto::ring::default_provider(),
        #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
        rustls_graviola::default_provider(),
    ];
    for provider in providers {
        full_handshake(VERSION_1, &Arc::new(squall_tls::wrap(provider.clone())));
        if quic_suites(&provider) > 0 {
            full_handshake(VERSION_1, &Arc::new(provider.clone()));
            full_handshake(VERSION_2, &Arc::new(provider));
        }
    }
}

fn quic_suites(provider: &CryptoProvider) -> usize {
    let suites = provider.cipher_suites.iter();
    let with = suites.filter(|suite| suite.tls13().is_some_and(|tls13| tls13.quic.is_some()));
    with.count()
}

/// A key log that remembers the labels.
#[derive(Debug, Default)]
struct Labels(Mutex<BTreeSet<String>>);

impl rustls::KeyLog for Labels {
    fn log(&self, label: &str, _: &[u8], _: &[u8]) {
        self.0.lock().unwrap().insert(label.to_owned());
    }
}

#[test]
fn the_key_log_of_the_configuration_gets_every_secret() {
    let pki = pki();
    let logs = [Arc::new(Labels::default()), Arc::new(Labels::default())];
    let mut client = (*client_config(&pki.authority, squall_tls::provider(), &[])).clone();
    client.key_log = Arc::<Labels>::clone(&logs[0]);
    let mut server = (*server_config(&pki, squall_tls::provider(), &[])).clone();
    server.key_log = Arc::<Labels>::clone(&logs[1]);
    let (mut client, mut server) = connect(VERSION_1, client.into(), server.into());
    shake(&mut client, &mut server).unwrap();
    for log in logs {
        let expected = [
            "CLIENT_HANDSHAKE_TRAFFIC_SECRET",
            "CLIENT_TRAFFIC_SECRET_0",
            "EXPORTER_SECRET",
            "SERVER_HANDSHAKE_TRAFFIC_SECRET",
            "SERVER_TRAFFIC_SECRET_0",
        ];
        assert!(log.0.lock().unwrap().iter().eq(expected));
    }
}

#[test]
fn versions_do_not_share_keys() {
    let pki = pki();
    let provider = squall_tls::provider;
    let client = client_config(&pki.authority, provider(), &[]);
    let server = server_config(&pki, provider(), &[]);
    let mut one = End::new(Session::client(&client, VERSION_1, server_name(), Vec::new()).unwrap());
    let mut two =
        End::new(Session::server(&server, VERSION_2, VERSION_2, Vec::new(), &[]).unwrap());
    // The messages are the same, so TLS completes; RFC 9369 §3.3.2: the packet keys are not.
    shake(&mut one, &mut two).unwrap();
    let (one, two) = (one.handshake.unwrap(), two.handshake.unwrap());
    assert!(!agree(
        (&one.local.packet, &one.local.header),
        (&two.remote.packet, &two.remote.header),
    ));
}

// test: RFC 9001 §8.1 — no common application protocol is no_application_protocol (120).
#[test]
fn a_missing_common_alpn_raises_the_alert() {
    let pki = pki();
    let provider = squall_tls::provider();
    let (mut client, mut server) = connect(
        VERSION_1,
        client_config(&pki.authority, provider.clone(), &["one"]),
        server_config(&pki, provider, &["two"]),
    );
    let (side, alert) = shake(&mut client, &mut server).unwrap_err();
    assert_eq!((side, alert.code), ("server", Some(120)));
}

// test: RFC 9001 §4.8 — a certificate of another authority is unknown_ca (48); if that authority
// has the right name, only its signature fails: decrypt_error (51).
#[test]
fn a_wrong_authority_raises_the_alert() {
    for (trusted, code) in [("Another authority", 48), ("Test authority", 51)] {
        let provider = squall_tls::provider();
        let (mut client, mut server) = connect(
            VERSION_1,
            client_config(&pki_of(trusted).authority, provider.clone(), &[]),
            server_config(&pki(), provider, &[]),
        );
        let (side, alert) = shake(&mut client, &mut server).unwrap_err();
        assert_eq!((side, alert.code), ("client", Some(code)), "{alert}");
        assert!(alert.reason.contains("certificate"), "{alert}");
        // No 1-RTT keys from an unauthenticated peer.
        client.flush();
        assert!(client.one_rtt.is_none());
    }
}

// test: RFC 9001 §4.8 — what is no handshake message ends in an alert, not in a panic.
#[test]
fn garbage_raises_an_alert() {
    let pki = pki();
    let config = server_config(&pki, squall_tls::provider(), &[]);
    let mut server = Session::server(&config, VERSION_1, VERSION_1, Vec::new(), &[]).unwrap();
    // A ClientHello of length 4 whose version field is 0xffff and whose random is missing.
    let alert = server.read(&[1, 0, 0, 4, 0xff, 0xff, 0, 0]).unwrap_err();
    assert_eq!(alert.code, Some(50), "{alert}");
}

/// A copy of the suite under another name, for QUIC or not.
fn renamed(of: &Tls13CipherSuite, name: CipherSuite, quic: bool) -> SupportedCipherSuite {
    SupportedCipherSuite::Tls13(Box::leak(Box::new(Tls13CipherSuite {
        common: CipherSuiteCommon {
            suite: name,
            hash_provider: of.common.hash_provider,
            confidentiality_limit: of.common.confidentiality_limit,
        },
        hkdf_provider: of.hkdf_provider,
        aead_alg: of.aead_alg,
        quic: of.quic.filter(|_| quic),
    })))
}

#[test]
fn providers_without_a_quic_suite_or_with_an_unknown_one_are_rejected() {
    use CipherSuite::{TLS13_AES_128_CCM_SHA256 as CCM, TLS13_AES_128_GCM_SHA256 as GCM};
    let pki = pki();
    let base = rustls::crypto::aws_lc_rs::default_provider();
    let gcm = (base.cipher_suites.iter().find(|suite| suite.suite() == GCM)).unwrap();
    for (name, quic, expected) in [(GCM, false, "no cipher suite"), (CCM, true, "AES_128_CCM")] {
        let mut provider = base.clone();
        provider.cipher_suites = vec![renamed(gcm.tls13().unwrap(), name, quic)];
        let provider = Arc::new(provider);
        let client = client_config(&pki.authority, provider.clone(), &[]);
        let server = server_config(&pki, provider, &[]);
        let client = Session::client(&client, VERSION_1, server_name(), Vec::new()).unwrap_err();
        let server = Session::server(&server, VERSION_1, VERSION_1, Vec::new(), &[]).unwrap_err();
        for error in [client, server] {
            assert!(match error {
                Error::NoSuite => name == GCM,
                Error::UnsupportedSuite(unknown) => unknown == CCM && name == CCM,
                _ => false,
            });
            let text = error.to_string();
            assert!(
                text.contains(expected) && text.contains("squall::wrap"),
                "{text}"
            );
        }
    }
}

#[test]
fn unknown_versions_are_rejected() {
    let config = server_config(&pki(), squall_tls::provider(), &[]);
    let error = Session::server(&config, 0x0a1a_2a3a, 0x0a1a_2a3a, Vec::new(), &[]).unwrap_err();
    assert!(matches!(error, Error::UnsupportedVersion(0x0a1a_2a3a)));
}

#[test]
fn sessions_move_between_threads() {
    fn sendable<T: Send + Sync>() {}
    sendable::<Session>();
    sendable::<Secrets>();
}

/// Runs a handshake of both configurations in these versions; returns whether it was resumed.
fn kind_in(
    client: &Arc<ClientConfig>,
    server: &Arc<ServerConfig>,
    client_version: u32,
    [original, negotiated]: [u32; 2],
) -> HandshakeKind {
    let (client, server) = (Arc::clone(client), Arc::clone(server));
    let mut client =
        End::new(Session::client(&client, client_version, server_name(), Vec::new()).unwrap());
    let mut server =
        End::new(Session::server(&server, original, negotiated, Vec::new(), &[]).unwrap());
    shake(&mut client, &mut server).unwrap();
    client.session.handshake_kind().unwrap()
}

// test: RFC 9369 §5 — a ticket is good for the version alone that it was issued in. TLS does not
// know the version, so that a session of one version completes with one of the other here, and each
// end's part shows alone.
#[test]
fn tickets_stay_in_their_version() {
    let pki = pki();
    let fresh = || {
        let client = client_config(&pki.authority, squall_tls::provider(), &["x"]);
        (client, server_config(&pki, squall_tls::provider(), &["x"]))
    };
    let (full, resumed) = (HandshakeKind::Full, HandshakeKind::Resumed);
    let v1 = [VERSION_1; 2];
    let (client, server) = fresh();
    assert_eq!(kind_in(&client, &server, VERSION_1, v1), full);
    assert_eq!(kind_in(&client, &server, VERSION_1, v1), resumed);
    // A client in version 2 presents no ticket of version 1, a server in version 2 accepts none.
    assert_eq!(kind_in(&client, &server, VERSION_2, v1), full);
    let v2 = [VERSION_2; 2];
    assert_eq!(kind_in(&client, &server, VERSION_1, v2), full);
    // A server that has changed to version 2 accepts a ticket of version 1 and issues none.
    let (client, server) = fresh();
    let changed = [VERSION_1, VERSION_2];
    assert_eq!(kind_in(&client, &server, VERSION_1, changed), full);
    assert_eq!(
        kind_in(&client, &server, VERSION_1, v1),
        full,
        "the changed server issued no ticket"
    );
    assert_eq!(kind_in(&client, &server, VERSION_1, changed), resumed);
}

#[test]
fn early_data_is_all_or_nothing() {
    let pki = pki();
    let mut config = (*server_config(&pki, squall_tls::provider(), &["x"])).clone();
    for (size, good) in [(0, true), (u32::MAX, true), (1, false), (16_384, false)] {
        config.max_early_data_size = size;
        let made = Session::server(&config, 1, 1, Vec::new(), &[]);
        assert_eq!(made.is_ok(), good, "{size}");
        assert_eq!(Session::check_server(&config).is_ok(), good, "{size}");
    }
}
