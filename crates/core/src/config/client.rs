//! Settings of a client connection.

use std::sync::Arc;

use super::transport::TransportConfig;

/// Settings of a client connection.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ClientConfig {
    /// A regular rustls configuration, built on a provider of `squall_tls`: a built-in one, or one
    /// that it has wrapped.
    pub tls: Arc<rustls::ClientConfig>,
    /// Transport settings.
    pub transport: Arc<TransportConfig>,
}

impl ClientConfig {
    /// These TLS settings, with the default transport settings.
    #[must_use]
    pub fn new(tls: impl Into<Arc<rustls::ClientConfig>>) -> Self {
        Self {
            tls: tls.into(),
            transport: Arc::default(),
        }
    }

    /// Sets the transport settings.
    #[must_use]
    pub fn transport(mut self, transport: impl Into<Arc<TransportConfig>>) -> Self {
        self.transport = transport.into();
        self
    }
}
