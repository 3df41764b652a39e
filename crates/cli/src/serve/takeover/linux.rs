//! Takeovers where squall supports them.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use squall::{Builder, Endpoint, Takeover};
use squall_yard::error::{Failure, Result, context};
use tokio::net::TcpListener;

/// The wait before the next attempt if the system refuses.
const PAUSE: Duration = Duration::from_secs(1);

/// What comes from the running server.
pub(crate) struct Inherited {
    /// The UDP port.
    takeover: Takeover,
    /// TCP listeners: for the site, and for metrics if they have an address of their own.
    listeners: Vec<std::net::TcpListener>,
}

impl Inherited {
    /// Asks the running server, if there is one.
    ///
    /// # Errors
    /// It does not hand over its ports, or has ports other than `listen`.
    pub(crate) fn request(path: &Path, listen: SocketAddr) -> Result<Option<Self>> {
        let failed = format!("cannot take over at {}", path.display());
        let takeover = Takeover::request(path).map_err(context(&failed))?;
        let Some(mut takeover) = takeover else {
            return Ok(None);
        };
        let theirs = takeover.local_addr();
        if !fits(listen, theirs) {
            return Err(Failure::new(format!(
                "{failed}: the running server listens on {theirs}, not on {listen}; use --listen {theirs}, or another path"
            )));
        }
        let listeners = takeover.take_descriptors().into_iter();
        Ok(Some(Self {
            takeover,
            listeners: listeners.map(std::net::TcpListener::from).collect(),
        }))
    }

    /// The address of the UDP port, and of the TCP listener for the site.
    pub(crate) const fn address(&self) -> SocketAddr {
        self.takeover.local_addr()
    }

    /// The endpoint takes over the UDP port.
    pub(crate) fn apply(self, builder: Builder) -> Builder {
        builder.take_over(self.takeover)
    }

    /// Takes the listener at this address, if there is one.
    ///
    /// # Errors
    /// tokio cannot use it.
    pub(crate) fn take_listener(&mut self, address: SocketAddr) -> io::Result<Option<TcpListener>> {
        let is_there = |one: &std::net::TcpListener| one.local_addr().is_ok_and(|a| a == address);
        let Some(at) = self.listeners.iter().position(is_there) else {
            return Ok(None);
        };
        let listener = self.listeners.swap_remove(at);
        listener.set_nonblocking(true)?;
        TcpListener::from_std(listener).map(Some)
    }
}

/// Whether a server that was told to listen at `listen` may take over this address.
fn fits(listen: SocketAddr, theirs: SocketAddr) -> bool {
    // Where IPv6 is disabled, all IPv4 addresses stand for all addresses.
    let without_v6 = listen.ip() == Ipv6Addr::UNSPECIFIED && theirs.ip() == Ipv4Addr::UNSPECIFIED;
    (listen.ip() == theirs.ip() || without_v6) && [0, theirs.port()].contains(&listen.port())
}

/// Waits for a successor, and hands over the UDP port and the TCP listeners.
pub(crate) struct Successor {
    path: PathBuf,
    endpoint: Endpoint,
    site: Arc<TcpListener>,
    metrics: Option<Arc<TcpListener>>,
}

impl Successor {
    pub(crate) fn new(
        path: &Path,
        endpoint: Endpoint,
        site: Arc<TcpListener>,
        metrics: Option<Arc<TcpListener>>,
    ) -> Self {
        Self {
            path: path.to_owned(),
            endpoint,
            site,
            metrics,
        }
    }

    /// Closes the listener for metrics once a successor has its own: otherwise its address would be
    /// in use until this process ends, even if no later server has it. If the successor crashes,
    /// the next one binds it.
    pub(crate) fn without_metrics(self) -> Self {
        Self {
            metrics: None,
            ..self
        }
    }

    /// Ends when a successor has the ports. If it then ends early, the next call waits for another.
    /// A path that cannot be used is no reason to stop serving.
    pub(crate) async fn wait(&self) {
        let listeners = self.metrics.iter().chain([&self.site]);
        let listeners: Vec<_> = listeners.map(|one| one.as_fd()).collect();
        let mut has_warned = false;
        loop {
            let Err(error) = self.endpoint.hand_over(&self.path, &listeners).await else {
                return;
            };
            // Other: the worker that waited has ended, while others still run.
            if error.kind() != io::ErrorKind::Other && !has_warned {
                let path = self.path.display();
                eprintln!("squall: cannot wait for a successor at {path}: {error}; trying again");
                has_warned = true;
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}
