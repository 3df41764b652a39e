//! The servers that a client trusts: `-k`, `--cacert FILE`, or the system's certificates.

use std::path::Path;
use std::sync::Arc;

use squall::rustls::ClientConfig;
use squall::rustls::crypto::CryptoProvider;
use squall_yard::certificate;
use squall_yard::error::{Failure, Result};

/// A TLS 1.3 client that trusts any server, the certificates in `cacert`, or those of the system.
pub(crate) fn client_config(
    insecure: bool,
    cacert: Option<&Path>,
    provider: Arc<CryptoProvider>,
) -> Result<ClientConfig> {
    if insecure {
        return certificate::trusting_anyone(provider);
    }
    if let Some(file) = cacert {
        return certificate::trusting(&certificate::read_certificates(file)?, provider);
    }
    let system = rustls_native_certs::load_native_certs().certs;
    if system.is_empty() {
        return Err(Failure::new(
            "this system has no trusted certificates: pass the server's with --cacert FILE, or -k to skip verification",
        ));
    }
    certificate::trusting(&system, provider)
}
