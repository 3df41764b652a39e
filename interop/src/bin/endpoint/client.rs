//! The client: downloads the requested files, in the way that the case requires.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use http::Uri;
use squall::rustls::client::{ClientSessionMemoryCache, ClientSessionStore, Resumption};
use squall::rustls::pki_types::ServerName;
use squall::rustls::{self, NamedGroup};
use squall::{Builder, ClientConfig, Connection, Endpoint};
use tokio::sync::Notify;
use tokio::task::JoinSet;

use crate::Outcome;
use crate::config;
use crate::facts::Facts;
use crate::http3;
use crate::http09;
use crate::settings::{Case, Settings};

/// How long a ticket may take to arrive after a handshake.
const TICKET_PATIENCE: Duration = Duration::from_secs(5);
/// How often a key update is tried: the previous one must be acknowledged first.
const KEY_UPDATE_INTERVAL: Duration = Duration::from_millis(5);

/// Downloads everything.
pub(crate) async fn run(settings: &Settings) -> Outcome<()> {
    let tickets = Arc::new(Tickets::default());
    let mut tls = config::client_tls(settings)?;
    if matches!(settings.case, Case::Resumption | Case::ZeroRtt) {
        tls.resumption = Resumption::store(Arc::clone(&tickets) as _);
    }
    let config = ClientConfig::new(tls).transport(config::transport(settings));
    let client = Client {
        endpoint: endpoint(&config)?,
        settings,
    };
    let requests = &settings.requests[..];
    let Some((first, others)) = requests.split_first() else {
        return Err("REQUESTS is empty".into());
    };
    match settings.case {
        Case::MultiConnect => {
            for request in requests {
                let connection = client.connect(request).await?;
                client
                    .fetch(connection, std::slice::from_ref(request))
                    .await?;
            }
        }
        Case::Resumption | Case::ZeroRtt => {
            let connection = client.connect(first).await?;
            client
                .fetch(connection, std::slice::from_ref(first))
                .await?;
            tokio::time::timeout(TICKET_PATIENCE, tickets.came.notified())
                .await
                .map_err(|_| "the server has sent no ticket")?;
            let connection = if settings.case == Case::ZeroRtt {
                client.connect_early(first).await?
            } else {
                client.connect(first).await?
            };
            client.fetch(connection, others).await?;
        }
        _ => {
            let connection = client.connect(first).await?;
            if settings.case == Case::KeyUpdate {
                tokio::spawn(update_keys(connection.clone()));
            }
            client.fetch(connection, requests).await?;
        }
    }
    client.endpoint.wait_idle().await;
    Ok(())
}

/// Updates the keys once, as early as possible.
async fn update_keys(connection: Connection) {
    while connection.close_reason().is_none() && !connection.force_key_update() {
        tokio::time::sleep(KEY_UPDATE_INTERVAL).await;
    }
}

/// Binds a port for IPv6 and IPv4, or for IPv4 alone if there is no IPv6.
fn endpoint(config: &ClientConfig) -> Outcome<Endpoint> {
    let bind = |address: SocketAddr| {
        let builder = Builder::new(address).client(config.clone());
        builder.events(Arc::new(Facts)).bind()
    };
    let any = (Ipv6Addr::UNSPECIFIED, 0).into();
    Ok(bind(any).or_else(|_| bind((Ipv4Addr::UNSPECIFIED, 0).into()))?)
}

struct Client<'a> {
    endpoint: Endpoint,
    settings: &'a Settings,
}

impl Client<'_> {
    async fn connect(&self, url: &Uri) -> Outcome<Connection> {
        let (address, host) = self.server(url).await?;
        Ok(self.endpoint.connect(address, host)?.await?)
    }

    /// A connection that accepts early data.
    async fn connect_early(&self, url: &Uri) -> Outcome<Connection> {
        let (address, host) = self.server(url).await?;
        let connecting = self.endpoint.connect(address, host)?;
        match connecting.into_0rtt().await {
            Ok((connection, _)) => Ok(connection),
            Err(_) => Err("the ticket is not one for early data".into()),
        }
    }

    /// The address and the name of a URL's server.
    async fn server<'u>(&self, url: &'u Uri) -> Outcome<(SocketAddr, &'u str)> {
        let host = url.host().ok_or("a URL without a host")?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let port = url.port_u16().unwrap_or(443);
        let fixed = (self.settings.resolve.iter()).find(|(name, _)| name == host);
        if let Some((_, address)) = fixed {
            return Ok(((*address, port).into(), host));
        }
        let mut found = tokio::net::lookup_host((host, port)).await?;
        Ok((found.next().ok_or("a host without an address")?, host))
    }

    /// Downloads files concurrently, then closes the connection.
    async fn fetch(&self, connection: Connection, urls: &[Uri]) -> Outcome<()> {
        let mut fetches = JoinSet::new();
        if self.settings.case == Case::Http3 {
            let requests = squall_h3::client::handshake(connection.clone());
            for url in urls {
                let (requests, url, to) = (requests.clone(), url.clone(), self.target(url)?);
                fetches.spawn(async move { http3::get(&requests, &url, &to).await });
            }
        } else {
            for url in urls {
                let (connection, to) = (connection.clone(), self.target(url)?);
                let path = url.path().to_owned();
                fetches.spawn(async move { http09::get(&connection, &path, &to).await });
            }
        }
        while let Some(fetched) = fetches.join_next().await {
            fetched??;
        }
        let code = match self.settings.case {
            Case::Http3 => http3::NO_ERROR,
            _ => 0,
        };
        connection.close(code, b"");
        connection.closed().await;
        Ok(())
    }

    /// Where a URL's file goes.
    fn target(&self, url: &Uri) -> Outcome<PathBuf> {
        let name = url.path().strip_prefix('/').unwrap_or_default();
        Ok(Path::new(&self.settings.downloads).join(http09::plain(name)?))
    }
}

/// Tickets in memory, and a notification when one arrives.
#[derive(Debug)]
struct Tickets {
    store: ClientSessionMemoryCache,
    came: Notify,
}

impl Default for Tickets {
    fn default() -> Self {
        Self {
            store: ClientSessionMemoryCache::new(8),
            came: Notify::new(),
        }
    }
}

impl ClientSessionStore for Tickets {
    fn set_kx_hint(&self, server_name: ServerName<'static>, group: NamedGroup) {
        self.store.set_kx_hint(server_name, group);
    }

    fn kx_hint(&self, server_name: &ServerName<'_>) -> Option<NamedGroup> {
        self.store.kx_hint(server_name)
    }

    fn set_tls12_session(
        &self,
        server_name: ServerName<'static>,
        value: rustls::client::Tls12ClientSessionValue,
    ) {
        self.store.set_tls12_session(server_name, value);
    }

    fn tls12_session(
        &self,
        server_name: &ServerName<'_>,
    ) -> Option<rustls::client::Tls12ClientSessionValue> {
        self.store.tls12_session(server_name)
    }

    fn remove_tls12_session(&self, server_name: &ServerName<'static>) {
        self.store.remove_tls12_session(server_name);
    }

    fn insert_tls13_ticket(
        &self,
        server_name: ServerName<'static>,
        value: rustls::client::Tls13ClientSessionValue,
    ) {
        self.store.insert_tls13_ticket(server_name, value);
        self.came.notify_one();
    }

    fn take_tls13_ticket(
        &self,
        server_name: &ServerName<'static>,
    ) -> Option<rustls::client::Tls13ClientSessionValue> {
        self.store.take_tls13_ticket(server_name)
    }
}
