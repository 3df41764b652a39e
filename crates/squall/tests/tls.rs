//! TLS configurations from PEM files: valid ones connect, and a problem with a file is reported in
//! one line that names it.
#![expect(clippy::unwrap_used, reason = "a test's way to fail")]

mod common;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use common::{ALPN, ANY};
use squall::tls::{self, Error, Identity, Trust, roots_from_pem};
use squall::{Builder, ClientConfig, CloseReason, ServerConfig, TransportConfig, rustls};

const PROTOCOLS: &[&[u8]] = &[ALPN];

/// A PKCS #8 key with a password.
const ENCRYPTED: &str = "-----BEGIN ENCRYPTED PRIVATE KEY-----
MIGbMFcGCSqGSIb3DQEFDTBKMCkGCSqGSIb3DQEFDDAcBAhLcCOdw1BMMQICCAAw
DAYIKoZIhvcNAgkFADAdBglghkgBZQMEASoEEJbdZjGBbpqyQTMpIsaI4GoEQPNI
slLP7Jr8lRT2/ysig0+ocv8nrOwsWI6CG3smMWIilt9OlRQ9J+o00VIIOOS06Zx2
2UqAaVM0iZV5TF+fPB8=
-----END ENCRYPTED PRIVATE KEY-----
";

/// A SEC 1 key with a password, as OpenSSL wrote them before PKCS #8.
const ENCRYPTED_BY_HEADER: &str = "-----BEGIN EC PRIVATE KEY-----
Proc-Type: 4,ENCRYPTED
DEK-Info: AES-128-CBC,42E3F6F94CA3D71490F82D2DC657F205

sgZ3C+iXUnLuc/dP3L4Rv1sp+ZSfDdtNogxL78GETWDgkKzRInm47GVSP3Re1ObT
zzTH2Th38SgELi1mnIVUImhakX+Yy9DuYV314uaLFXl4fRLfkOlv647J3HS/41YG
nZjF6j0cO/tjXzwwXX3peMA40jLZ9CraeqrdxR2ilV4=
-----END EC PRIVATE KEY-----
";

/// A test's folder, removed on drop.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("squall-tls-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn write(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, content).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A private authority.
struct Authority {
    issuer: rcgen::Issuer<'static, rcgen::KeyPair>,
    pem: String,
}

impl Authority {
    fn new() -> Self {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let pem = params.self_signed(&key).unwrap().pem();
        Self {
            issuer: rcgen::Issuer::new(params, key),
            pem,
        }
    }

    /// A certificate for this name and its key, as PEM.
    fn signs(&self, name: &str) -> (String, String) {
        let key = rcgen::KeyPair::generate().unwrap();
        let params = rcgen::CertificateParams::new([name.to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        (certificate.pem(), key.serialize_pem())
    }
}

/// Makes a handshake and a stream; returns what the server knows about the client.
async fn connect(
    server: rustls::ServerConfig,
    client: rustls::ClientConfig,
) -> Result<usize, CloseReason> {
    let transport = TransportConfig::default().keep_peer_certificates(true);
    let server = Builder::new(ANY).server(ServerConfig::new(server).transport(transport));
    let server = server.bind().unwrap();
    let client = Builder::new(ANY).client(ClientConfig::new(client));
    let client = client.bind().unwrap();
    let answer = async {
        let connection = server.accept().await.unwrap().await?;
        let mut recv = connection.accept_uni().await?;
        assert_eq!(recv.read_to_end(100).await.unwrap(), b"hello");
        let certificates = connection.peer_certificates().unwrap_or_default().len();
        connection.close(0, b"");
        Ok(certificates)
    };
    let ask = async {
        let address = server.local_addr().unwrap();
        let connection = client.connect(address, "localhost").unwrap().await?;
        let mut send = connection.open_uni().await?;
        // The server may have refused the client's certificate by now; `answer` says so.
        if send.write_all(b"hello").await.is_ok() {
            let _ = send.finish();
        }
        Ok::<_, CloseReason>(connection.closed().await)
    };
    let (answered, asked) = tokio::join!(answer, ask);
    asked.and(answered)
}

#[tokio::test]
async fn pem_files_of_an_authority_work_with_and_without_client_certificates() {
    let folder = Folder::new("authority");
    let (authority, other) = (Authority::new(), Authority::new());
    let roots = folder.write("ca.pem", &authority.pem);
    let (certificate, key) = authority.signs("localhost");
    let chain = folder.write("server.pem", format!("{certificate}{}", authority.pem));
    let key = folder.write("server.key", key);
    let server = || Identity::from_pem(&chain, &key).unwrap();
    let trusted = || roots_from_pem(&roots).unwrap();
    assert_eq!(server().certificates().len(), 2);

    let plain = tls::server(server(), PROTOCOLS).unwrap();
    let client = tls::client(trusted(), PROTOCOLS).unwrap();
    assert_eq!(connect(plain.clone(), client.clone()).await, Ok(0));

    // Certificate and key in one file.
    let (certificate, key) = authority.signs("alice");
    let alice = folder.write("alice.pem", format!("{key}{certificate}"));
    let alice = Identity::from_pem(&alice, &alice).unwrap();
    let mutual = tls::mutual_server(server(), trusted(), PROTOCOLS).unwrap();
    let with_alice = tls::mutual_client(trusted(), alice, PROTOCOLS).unwrap();
    assert_eq!(connect(mutual.clone(), with_alice).await, Ok(1));

    // Without a certificate, or with one from another authority, there is no connection.
    assert!(connect(mutual.clone(), client).await.is_err());
    let (certificate, key) = other.signs("mallory");
    let mallory = folder.write("mallory.pem", format!("{certificate}{key}"));
    let mallory = Identity::from_pem(&mallory, &mallory).unwrap();
    let with_mallory = tls::mutual_client(trusted(), mallory, PROTOCOLS).unwrap();
    assert!(connect(mutual, with_mallory).await.is_err());

    // Nor with a server that the roots do not know.
    let strangers = folder.write("other.pem", &other.pem);
    let client = tls::client(roots_from_pem(strangers).unwrap(), PROTOCOLS).unwrap();
    assert!(connect(plain, client).await.is_err());
}

#[tokio::test]
async fn a_self_signed_identity_is_trusted_by_its_own_roots() {
    let identity = Identity::self_signed(["localhost"]).unwrap();
    let roots = identity.roots().unwrap();
    let server = tls::server(identity.clone(), PROTOCOLS).unwrap();
    let client = tls::client(roots, PROTOCOLS).unwrap();
    assert_eq!(connect(server.clone(), client).await, Ok(0));
    let other = Identity::self_signed(["localhost"]).unwrap();
    let client = tls::client(other.roots().unwrap(), PROTOCOLS).unwrap();
    assert!(connect(server, client).await.is_err());
    let error = Identity::self_signed(["lo\u{2603}"]).unwrap_err();
    assert!(matches!(error, Error::SelfSigned(_)), "{error}");
}

/// The error text of a failed handshake, the same at both ends but for which of them closed.
async fn handshake_error(server: rustls::ServerConfig, client: rustls::ClientConfig) -> String {
    let server = Builder::new(ANY).server(ServerConfig::new(server));
    let server = server.bind().unwrap();
    let client = Builder::new(ANY).client(ClientConfig::new(client));
    let client = client.bind().unwrap();
    let connecting = client.connect(server.local_addr().unwrap(), "localhost");
    let (near, far) = common::meet(connecting.unwrap(), &server).await;
    let text = |result: Result<squall::Connection, CloseReason>| {
        let text = result.unwrap_err().to_string();
        let (_, text) = text.split_once(": ").unwrap();
        text.to_owned()
    };
    let (near, far) = (text(near), text(far));
    assert_eq!(near, far);
    near
}

/// A resolver without a certificate for any client.
#[derive(Debug)]
struct NoClientCertificate;

impl rustls::server::ResolvesServerCert for NoClientCertificate {
    fn resolve(
        &self,
        _: rustls::server::ClientHello<'_>,
    ) -> Option<std::sync::Arc<rustls::sign::CertifiedKey>> {
        None
    }
}

#[tokio::test]
async fn a_failed_handshake_names_the_likely_cause() {
    let identity = Identity::self_signed(["localhost"]).unwrap();
    let roots = || identity.roots().unwrap();
    let server = || tls::server(identity.clone(), PROTOCOLS).unwrap();
    let other_protocol = tls::client(roots(), &[b"other"]).unwrap();
    let text = handshake_error(server(), other_protocol).await;
    assert!(text.contains("no_application_protocol"), "{text}");
    assert!(text.contains("ALPN"), "{text}");

    let mut for_nobody = server();
    for_nobody.cert_resolver = std::sync::Arc::new(NoClientCertificate);
    let client = || tls::client(roots(), PROTOCOLS).unwrap();
    let text = handshake_error(for_nobody, client()).await;
    assert!(
        text.contains("no certificate for the server name"),
        "{text}"
    );
    assert!(!text.contains("unexpected"), "{text}");

    // A new self-signed certificate has the old one's name, and another key.
    let renewed = Identity::self_signed(["localhost"]).unwrap();
    let text = handshake_error(tls::server(renewed, PROTOCOLS).unwrap(), client()).await;
    assert!(text.contains("another key"), "{text}");

    let mut params = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate = params.self_signed(&key).unwrap();
    let mut roots = rustls::RootCertStore::empty();
    roots.add(certificate.der().clone()).unwrap();
    let key = rustls::pki_types::PrivateKeyDer::Pkcs8(key.serialize_der().into());
    let of_a_ca = squall::server_tls(vec![certificate.der().clone()], key, PROTOCOLS).unwrap();
    let text = handshake_error(of_a_ca, tls::client(roots, PROTOCOLS).unwrap()).await;
    assert!(text.contains("without the CA flag"), "{text}");
}

/// The error, which is one line and begins with the file's path.
fn line<T>(result: Result<T, Error>, path: &Path) -> String {
    let error = result.err().unwrap();
    let text = error.to_string();
    assert!(!text.contains('\n'), "{text}");
    let rest = text.strip_prefix(&format!("{}: ", path.display()));
    rest.unwrap_or_else(|| panic!("{text}")).to_owned()
}

#[test]
fn a_problem_with_a_file_is_reported_in_one_line() {
    let folder = Folder::new("errors");
    let authority = Authority::new();
    let (certificate, key_text) = authority.signs("localhost");
    let good = folder.write("good.pem", &certificate);
    let key = folder.write("good.key", &key_text);
    Identity::from_pem(&good, &key).unwrap();

    let missing = folder.0.join("missing.pem");
    for result in [
        Identity::from_pem(&missing, &key).map(drop),
        Identity::from_pem(&good, &missing).map(drop),
        roots_from_pem(&missing).map(drop),
    ] {
        assert!(line(result, &missing).starts_with("cannot be read: No such file"));
    }
    // An I/O error of the same kind, for callers that use `?` in functions of I/O.
    let error = std::io::Error::from(roots_from_pem(&missing).unwrap_err());
    assert_eq!(error.kind(), std::io::ErrorKind::NotFound);

    let empty = folder.write("empty.pem", "");
    let der = folder.write("der.pem", [0x30, 0x82, 0x01, 0x0a]);
    for path in [&empty, &der] {
        let no_certificate = "no certificate in this file: it is not in PEM format";
        assert!(line(roots_from_pem(path), path).starts_with(no_certificate));
        assert!(line(Identity::from_pem(path, &key), path).starts_with(no_certificate));
        let no_key = "no private key in this file: it is not in PEM format";
        assert!(line(Identity::from_pem(&good, path), path).starts_with(no_key));
    }
    assert_eq!(
        line(Identity::from_pem(&key, &good), &key),
        "no certificate in this file: it holds a private key; are the two files swapped?"
    );
    assert_eq!(
        line(Identity::from_pem(&good, &good), &good),
        "no private key in this file: it holds certificates; are the two files swapped?"
    );
    let public = key_text.replace("PRIVATE KEY", "PUBLIC KEY");
    let public = folder.write("public.pem", public);
    assert_eq!(
        line(Identity::from_pem(&good, &public), &public),
        "no private key in this file: its PEM sections are of other kinds"
    );

    for (name, text) in [("pkcs8", ENCRYPTED), ("sec1", ENCRYPTED_BY_HEADER)] {
        let encrypted = folder.write(name, text);
        let text = line(Identity::from_pem(&good, &encrypted), &encrypted);
        assert!(text.starts_with("the private key is encrypted; "), "{text}");
    }

    let (other, _) = authority.signs("localhost");
    let other = folder.write("other.pem", other);
    assert_eq!(
        line(Identity::from_pem(&other, &key), &key),
        format!(
            "the private key does not belong to the certificate in {}",
            other.display()
        )
    );
    let mut swapped = authority.pem.clone();
    let _ = write!(swapped, "{certificate}");
    let swapped = folder.write("swapped.pem", swapped);
    assert_eq!(
        line(Identity::from_pem(&swapped, &key), &swapped),
        format!(
            "the private key in {} belongs to certificate 2 in this file, which must come first",
            key.display()
        )
    );
}

#[test]
fn damage_in_a_file_is_reported_in_one_line() {
    let folder = Folder::new("damage");
    let (certificate, key_text) = Authority::new().signs("localhost");
    let good = folder.write("good.pem", &certificate);
    let key = folder.write("good.key", &key_text);

    let cut = certificate.replace("-----END CERTIFICATE-----", "");
    let cut = folder.write("cut.pem", cut);
    assert!(line(roots_from_pem(&cut), &cut).starts_with("its PEM is damaged: "));
    let cut = folder.write("cut.key", key_text.replace("MI", "!!"));
    assert!(line(Identity::from_pem(&good, &cut), &cut).starts_with("its PEM is damaged: "));

    // Base64 of something that is neither a certificate nor a key.
    let odd = "-----BEGIN CERTIFICATE-----\nMAMCAQE=\n-----END CERTIFICATE-----\n";
    let second = folder.write("second.pem", format!("{certificate}{odd}"));
    for result in [
        roots_from_pem(&second).map(drop),
        Identity::from_pem(&second, &key).map(drop),
    ] {
        let text = line(result, &second);
        assert!(
            text.starts_with("certificate 2 in this file is invalid: "),
            "{text}"
        );
    }
    let odd = folder.write("odd.key", odd.replace("CERTIFICATE", "PRIVATE KEY"));
    let text = line(Identity::from_pem(&good, &odd), &odd);
    assert!(
        text.starts_with("the private key is not usable: "),
        "{text}"
    );
}

#[test]
fn mismatched_der_is_rejected_too() {
    let (one, other) = (common::Identity::new(), common::Identity::new());
    let (chain, key) = one.chain_and_key();
    Identity::new(chain.clone(), key).unwrap();
    assert!(Identity::new(chain, other.chain_and_key().1).is_err());
    let identity = Identity::self_signed(["localhost"]).unwrap();
    let no_roots = rustls::RootCertStore::empty();
    assert!(tls::mutual_server(identity, no_roots, PROTOCOLS).is_err());
}

/// The platform's roots are read from the file that this variable names, as on systems with
/// OpenSSL.
#[cfg(target_os = "linux")]
#[test]
fn the_platforms_verifier_accepts_what_the_platform_trusts() {
    let folder = Folder::new("platform");
    let (trusted, other) = (Authority::new(), Authority::new());
    let roots = folder.write("roots.pem", &trusted.pem);
    for (authority, works) in [(&trusted, true), (&other, false)] {
        let (certificate, key) = authority.signs("localhost");
        folder.write("server.pem", format!("{certificate}{key}"));
        // A separate process, since the variable applies to a whole process.
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "in_a_child_of_the_platforms_test"])
            .env("SSL_CERT_FILE", &roots)
            .env("SQUALL_TEST_FOLDER", &folder.0)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&child.stdout);
        assert_eq!(child.status.success(), works, "{said}");
        assert!(said.contains("1 passed") == works, "{said}");
        assert!(said.contains("invalid peer certificate") != works, "{said}");
    }
}

#[tokio::test]
#[ignore = "run by the test above"]
async fn in_a_child_of_the_platforms_test() {
    let folder = std::env::var_os("SQUALL_TEST_FOLDER").unwrap();
    let server = Path::new(&folder).join("server.pem");
    let server = tls::server(Identity::from_pem(&server, &server).unwrap(), PROTOCOLS).unwrap();
    let client = tls::client(Trust::platform().unwrap(), PROTOCOLS).unwrap();
    assert_eq!(connect(server, client).await, Ok(0));
}
