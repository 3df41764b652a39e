//! Server certificates: verified as usual, except for the length of the chain.
//!
//! The chain of `amplificationlimit` has eight intermediate authorities, and webpki gives up after
//! six. The client is given the case name `transfer`, so it cannot know in advance.

use std::sync::Arc;

use squall::rustls::client::WebPkiServerVerifier;
use squall::rustls::client::danger::{
    HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier,
};
use squall::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use squall::rustls::{CertificateError, DigitallySignedStruct, Error, SignatureScheme};

/// The name of webpki's error for a chain that is too long, which rustls passes on as it is.
const TOO_LONG: &str = "MaximumPathDepthExceeded";

/// Accepts chains that are longer than webpki follows.
#[derive(Debug)]
pub(crate) struct LongChains(pub(crate) Arc<WebPkiServerVerifier>);

impl ServerCertVerifier for LongChains {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let verified =
            self.0
                .verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
        match verified {
            Err(Error::InvalidCertificate(CertificateError::Other(other)))
                if format!("{other:?}").contains(TOO_LONG) =>
            {
                println!("squall: the chain of certificates is too long to be verified");
                Ok(ServerCertVerified::assertion())
            }
            verified => verified,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0
            .verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0
            .verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}
