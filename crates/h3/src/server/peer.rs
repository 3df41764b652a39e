//! What a service can learn of the client.

use std::net::{IpAddr, SocketAddr};

use squall::Connection;
use squall::rustls::pki_types::CertificateDer;

/// The client that a request came from: an extension of every request at a server with
/// [`Config::peer_info`](crate::Config::peer_info).
///
/// ```
/// # fn answer(request: &http::Request<squall_h3::Body>) {
/// use squall_h3::server::Peer;
///
/// let peer = request.extensions().get::<Peer>();
/// let address = peer.map(Peer::remote_address);
/// # }
/// ```
/// It is a handle of the connection, as cheap to clone as an `Arc`, and like other handles it keeps
/// the connection open. Nothing is looked up before a method asks for it.
#[derive(Clone, Debug)]
pub struct Peer(Connection);

impl Peer {
    pub(super) fn new(connection: &Connection) -> Self {
        Self(connection.clone())
    }

    /// The client's address as it is now: a client may change it in the course of the connection
    /// (RFC 9000 §9). For a request that is early data, it is not proven yet that the client
    /// receives at this address (RFC 9000 §8.1).
    #[must_use]
    pub fn remote_address(&self) -> SocketAddr {
        self.0.remote_address()
    }

    /// The local address at which the client's datagrams arrive; `None` if the system does not
    /// report it.
    #[must_use]
    pub fn local_ip(&self) -> Option<IpAddr> {
        self.0.local_ip()
    }

    /// The server name that the client asked for in the handshake (RFC 6066 §3). The request's own
    /// authority may be another one that the certificate covers.
    #[must_use]
    pub fn server_name(&self) -> Option<String> {
        self.0.server_name()
    }

    /// The client's certificate chain, end-entity certificate first. `None` if the client has sent
    /// none, if the transport's `keep_peer_certificates` is not set, or if the handshake is not
    /// complete, as for a request that is early data.
    #[must_use]
    pub fn certificates(&self) -> Option<Vec<CertificateDer<'static>>> {
        self.0.peer_certificates()
    }

    /// The connection, for anything else, such as its round-trip time, or to close it. Its streams
    /// belong to HTTP/3.
    #[must_use]
    pub fn connection(&self) -> &Connection {
        &self.0
    }
}
