//! The server's certificate: read from PEM files, reloaded on request, or generated.

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use rcgen::{CertificateParams, KeyPair, PKCS_ECDSA_P256_SHA256, PublicKeyData as _};
use rustls::ServerConfig;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::{ClientHello, ResolvesServerCert, ServerSessionMemoryCache};
use rustls::sign::CertifiedKey;
use sha2::{Digest as _, Sha256};
use squall::tls::{self, Identity};
use squall_yard::error::{Failure, Result, context};

/// How long a generated certificate is valid. WebTransport's `serverCertificateHashes` allow two
/// weeks at most, from the first second to the last.
const VALIDITY: Duration = Duration::from_secs(13 * 24 * 3600);
/// How long before its creation it becomes valid, because clocks differ.
const AHEAD: Duration = Duration::from_secs(3600);

/// Sessions that can be resumed, which saves a client the certificate and both ends a signature.
/// They are kept in memory, since stateless tickets allow no early data (RFC 8446 §8.1).
const SESSIONS: usize = 4_096;

/// Where a certificate comes from.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    Files { cert: PathBuf, key: PathBuf },
    Made { names: Vec<String> },
}

/// Fingerprints by which browsers accept a certificate that no authority has signed.
#[derive(Debug)]
pub(crate) struct Fingerprints {
    /// BASE64(SHA-256(SubjectPublicKeyInfo)): `--ignore-certificate-errors-spki-list` of Chromium.
    pub(crate) spki: String,
    /// SHA-256 of the certificate, in hexadecimal: WebTransport's `serverCertificateHashes`.
    pub(crate) certificate: String,
}

/// The certificate for new connections, which can be replaced.
#[derive(Debug)]
pub(crate) struct Certificate {
    source: Source,
    current: Arc<Current>,
    tls: ServerConfig,
    /// Present for a generated certificate.
    pub(crate) fingerprints: Option<Fingerprints>,
}

/// The certificate that rustls fetches at each handshake.
struct Current(RwLock<Arc<dyn ResolvesServerCert>>);

impl fmt::Debug for Current {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Current")
    }
}

impl ResolvesServerCert for Current {
    fn resolve(&self, client_hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let resolver = Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner));
        resolver.resolve(client_hello)
    }
}

impl Certificate {
    /// Reads or generates a certificate.
    ///
    /// # Errors
    /// A file cannot be read or has no such content, or the key does not belong to the certificate.
    pub(crate) fn new(source: Source) -> Result<Self> {
        let (identity, fingerprints) = match &source {
            Source::Files { cert, key } => (read(cert, key)?, None),
            Source::Made { names } => {
                let (identity, fingerprints) = make(names)?;
                (identity, Some(fingerprints))
            }
        };
        let mut tls = tls::server(identity, &[]).map_err(context("TLS"))?;
        tls.session_storage = ServerSessionMemoryCache::new(SESSIONS);
        let current = Arc::new(Current(RwLock::new(Arc::clone(&tls.cert_resolver))));
        tls.cert_resolver = Arc::<Current>::clone(&current);
        Ok(Self {
            source,
            current,
            tls,
            fingerprints,
        })
    }

    /// A TLS configuration for these application protocols. It follows [`reload`](Self::reload).
    pub(crate) fn tls(&self, alpn: &[&[u8]]) -> ServerConfig {
        let mut tls = self.tls.clone();
        tls.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
        tls
    }

    /// Reads the files again, for future handshakes; `false` if there are none. Blocks.
    ///
    /// # Errors
    /// As [`new`](Self::new); the certificate then stays the same.
    pub(crate) fn reload(&self) -> Result<bool> {
        let Source::Files { cert, key } = &self.source else {
            return Ok(false);
        };
        let fresh = tls::server(read(cert, key)?, &[]).map_err(context("TLS"))?;
        let mut current = self
            .current
            .0
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        *current = fresh.cert_resolver;
        Ok(true)
    }
}

fn read(cert: &PathBuf, key: &PathBuf) -> Result<Identity> {
    Identity::from_pem(cert, key).map_err(|error| Failure::new(error.to_string()))
}

/// Generates a certificate for these names (ECDSA P-256), signed by its own key.
fn make(names: &[String]) -> Result<(Identity, Fingerprints)> {
    let failed = || context("cannot make a certificate");
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(failed())?;
    let mut params = CertificateParams::new(names).map_err(failed())?;
    let now = SystemTime::now();
    params.not_before = (now - AHEAD).into();
    params.not_after = (now - AHEAD + VALIDITY).into();
    let certificate = params.self_signed(&key).map_err(failed())?;
    let fingerprints = Fingerprints {
        spki: base64(&Sha256::digest(key.subject_public_key_info())),
        certificate: Sha256::digest(certificate.der())
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect(),
    };
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let identity = Identity::new(vec![certificate.der().clone()], key)
        .map_err(context("cannot make a certificate"))?;
    Ok((identity, fingerprints))
}

/// RFC 4648 §4, with padding.
pub(crate) fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let byte = |at: usize| u32::from(three.get(at).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for at in 0..4 {
            let sextet = (bits >> (18 - 6 * at) & 0x3f) as usize;
            text.push(if at <= three.len() {
                ALPHABET[sextet].into()
            } else {
                '='
            });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::serve::scratch::Scratch;

    // test: RFC 4648 §10
    #[test]
    fn base64_matches_the_vectors_of_the_rfc() {
        for (bytes, text) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("fooba", "Zm9vYmE="),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(base64(bytes.as_bytes()), text);
        }
        assert_eq!(base64(&[0xfb, 0xff]), "+/8=");
    }

    #[test]
    fn a_bad_file_does_not_replace_the_certificate() {
        let scratch = Scratch::new("certificate");
        let pem = || {
            let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("made");
            (made.cert.pem(), made.signing_key.serialize_pem())
        };
        let write = |(cert, key): (String, String)| {
            scratch.write("cert.pem", cert.as_bytes());
            scratch.write("key.pem", key.as_bytes());
        };
        write(pem());
        let source = Source::Files {
            cert: scratch.path().join("cert.pem"),
            key: scratch.path().join("key.pem"),
        };
        let certificate = Certificate::new(source).expect("a valid certificate");
        let current = || Arc::clone(&certificate.current.0.read().expect("no panic"));
        let first = current();
        // A key that belongs to another certificate.
        let (_, other) = pem();
        scratch.write("key.pem", other.as_bytes());
        let error = certificate
            .reload()
            .expect_err("they do not match")
            .to_string();
        assert!(
            error.contains("key.pem") && !error.contains('\n'),
            "{error}"
        );
        assert!(Arc::ptr_eq(&first, &current()));
        std::fs::remove_file(scratch.path().join("cert.pem")).expect("the file exists");
        assert!(certificate.reload().is_err());
        assert!(Arc::ptr_eq(&first, &current()));
        write(pem());
        assert!(certificate.reload().expect("a valid certificate"));
        assert!(!Arc::ptr_eq(&first, &current()));
    }

    #[test]
    fn a_generated_certificate_satisfies_browsers() {
        let source = Source::Made {
            names: vec!["localhost".to_owned(), "127.0.0.1".to_owned()],
        };
        let certificate = Certificate::new(source).expect("made");
        let fingerprints = certificate.fingerprints.as_ref().expect("made");
        assert_eq!(fingerprints.spki.len(), 44);
        assert_eq!(fingerprints.certificate.len(), 64);
        assert!(VALIDITY <= Duration::from_secs(14 * 24 * 3600));
        assert!(!certificate.reload().expect("nothing to do"));
        assert_eq!(certificate.tls(&[b"h2"]).alpn_protocols, [b"h2"]);
    }
}
