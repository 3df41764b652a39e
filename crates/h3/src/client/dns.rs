//! Where an origin speaks HTTP/3 according to the DNS: HTTPS records (RFC 9460).
//!
//! ```text
//!   addresses     the operating system's resolver ──────────────┐
//!   HTTPS records the DNS: aliases followed, services by        ├─> addresses in the order in
//!                 priority, those that speak h3 ────────────────┘   which they are tried
//! ```

use std::collections::HashSet;
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use hickory_resolver::config::{ConnectionConfig, NameServerConfig, ResolverConfig};
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::proto::rr::rdata::HTTPS;
use hickory_resolver::proto::rr::rdata::svcb::{SvcParamKey, SvcParamValue};
use hickory_resolver::proto::rr::{Name, RData, RecordType};
use hickory_resolver::{ResolverBuilder, TokioResolver};

use super::pool::{Resolve, System};

/// The port whose records have no prefix (RFC 9460 §9.1).
const HTTPS_PORT: u16 = 443;

/// Aliases that are followed (RFC 9460 §2.4.2: "a limit").
const MAX_ALIASES: usize = 8;

/// How long to wait for HTTPS records once the addresses are known: a network that drops such
/// queries costs no more than this (RFC 8305 §3, "Resolution Delay").
const DELAY: Duration = Duration::from_millis(50);

/// A resolver that also asks for HTTPS records (RFC 9460), which name the hosts and ports on which
/// an origin speaks HTTP/3.
///
/// Addresses come from the operating system's resolver, so that `/etc/hosts` and the like apply.
/// Services that do not speak `h3`, or demand something the client does not support, are left out.
/// The origin's own addresses come last: if there are no such records, or no service answers, they
/// are tried as usual (RFC 9460 §3, "SVCB-optional").
///
/// Dropping a future ends its queries. Answers are cached for their time to live.
#[derive(Clone)]
pub struct Dns {
    resolver: TokioResolver,
    addresses: Arc<dyn Resolve>,
    delay: Duration,
}

impl Dns {
    /// A resolver that asks the operating system's name servers.
    ///
    /// # Errors
    /// They cannot be found, or tokio offers no socket for them.
    pub fn system() -> io::Result<Self> {
        Self::new(TokioResolver::builder_tokio().map_err(io::Error::other)?)
    }

    /// A resolver that asks these name servers over UDP, and over TCP for longer answers.
    ///
    /// # Errors
    /// The list is empty.
    pub fn with_name_servers(servers: &[SocketAddr]) -> io::Result<Self> {
        if servers.is_empty() {
            let text = "no name server to ask";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        let servers = servers.iter().map(|server| {
            let connections = [ConnectionConfig::udp(), ConnectionConfig::tcp()];
            let connections = connections.map(|mut connection| {
                connection.port = server.port();
                connection
            });
            NameServerConfig::new(server.ip(), true, connections.into())
        });
        let config = ResolverConfig::from_name_servers(servers.collect());
        let provider = TokioRuntimeProvider::default();
        Self::new(TokioResolver::builder_with_config(config, provider))
    }

    fn new(builder: ResolverBuilder<TokioRuntimeProvider>) -> io::Result<Self> {
        Ok(Self {
            resolver: builder.build().map_err(io::Error::other)?,
            addresses: Arc::new(System),
            delay: DELAY,
        })
    }

    /// How long to wait for records once the addresses are known; 50 ms by default.
    #[must_use]
    pub fn resolution_delay(self, delay: Duration) -> Self {
        Self { delay, ..self }
    }

    /// Finds the addresses of hosts with a resolver other than the operating system's.
    #[must_use]
    pub fn addresses_from(self, addresses: Arc<dyn Resolve>) -> Self {
        Self { addresses, ..self }
    }

    /// The services of an origin, in order of priority, and the host that its alias leads to.
    async fn services(&self, host: &str, port: u16) -> (Vec<Service>, Option<String>) {
        let mut name = match port {
            HTTPS_PORT => format!("{host}."),
            _ => format!("_{port}._https.{host}."),
        };
        let mut alias = None;
        for _ in 0..MAX_ALIASES {
            // Without records, continue as if none had been requested.
            let Ok(found) = self.resolver.lookup(name.as_str(), RecordType::HTTPS).await else {
                return (Vec::new(), alias);
            };
            let records = found.answers().iter();
            let mut records: Vec<&HTTPS> = records
                .filter_map(|record| match &record.data {
                    RData::HTTPS(https) => Some(https),
                    _ => None,
                })
                .collect();
            records.sort_by_key(|record| record.svc_priority);
            match records.first() {
                // RFC 9460 §2.4.2: if an alias is among them, the services do not count.
                Some(first) if first.svc_priority == 0 => {
                    let Some(target) = host_of(&first.target_name) else {
                        return (Vec::new(), alias);
                    };
                    name = format!("{target}.");
                    alias = Some(target);
                }
                _ => {
                    let owner = alias.as_deref().unwrap_or(host);
                    let services = records.iter();
                    let services = services.filter_map(|one| Service::of(one, owner, port));
                    return (services.collect(), alias);
                }
            }
        }
        (Vec::new(), None)
    }
}

/// A service that speaks HTTP/3.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Service {
    host: String,
    port: u16,
    /// Addresses of the host, for use if the DNS has none.
    hints: Vec<IpAddr>,
}

impl Service {
    /// Reads a record; `None`: it is of no use for HTTP/3.
    fn of(record: &HTTPS, owner: &str, port: u16) -> Option<Self> {
        let mut service = Self {
            // RFC 9460 §2.5.2: "." is the owner's name.
            host: host_of(&record.target_name).unwrap_or_else(|| owner.to_owned()),
            port,
            hints: Vec::new(),
        };
        let mut speaks_h3 = false;
        for (_, value) in &record.svc_params {
            match value {
                SvcParamValue::Alpn(alpn) => speaks_h3 = alpn.0.iter().any(|one| one == "h3"),
                SvcParamValue::Port(own) => service.port = *own,
                SvcParamValue::Ipv4Hint(hint) => {
                    service
                        .hints
                        .extend(hint.0.iter().map(|one| IpAddr::V4(one.0)));
                }
                SvcParamValue::Ipv6Hint(hint) => {
                    service
                        .hints
                        .extend(hint.0.iter().map(|one| IpAddr::V6(one.0)));
                }
                // RFC 9460 §8: a client that does not know all of these ignores the record.
                SvcParamValue::Mandatory(keys) if !keys.0.iter().all(is_known) => return None,
                _ => {}
            }
        }
        (speaks_h3 && service.port > 0).then_some(service)
    }

    /// The host's addresses. Hints stand in if its addresses cannot be resolved (RFC 9460 §7.3).
    async fn addresses(self, resolver: &dyn Resolve) -> Vec<SocketAddr> {
        let port = self.port;
        match resolver.resolve(&self.host, port).await {
            Ok(found) if !found.is_empty() => found,
            _ => {
                let hints = self.hints.into_iter();
                hints.map(|ip| SocketAddr::new(ip, port)).collect()
            }
        }
    }
}

fn is_known(key: &SvcParamKey) -> bool {
    use SvcParamKey::{Alpn, Ipv4Hint, Ipv6Hint, Mandatory, NoDefaultAlpn, Port};
    matches!(
        key,
        Mandatory | Alpn | NoDefaultAlpn | Port | Ipv4Hint | Ipv6Hint
    )
}

/// A name without its trailing dot; `None` for the root.
fn host_of(name: &Name) -> Option<String> {
    let text = name.to_ascii();
    let host = text.trim_end_matches('.');
    (!host.is_empty()).then(|| host.to_ascii_lowercase())
}

impl Resolve for Dns {
    fn resolve(
        &self,
        host: &str,
        port: u16,
    ) -> Pin<Box<dyn Future<Output = io::Result<Vec<SocketAddr>>> + Send>> {
        let (dns, host) = (self.clone(), host.to_owned());
        Box::pin(async move {
            let addresses = &*dns.addresses;
            if host.parse::<IpAddr>().is_ok() {
                return addresses.resolve(&host, port).await;
            }
            let services = async {
                let (services, alias) = dns.services(&host, port).await;
                let mut found = Vec::new();
                for service in services {
                    found.extend(service.addresses(addresses).await);
                }
                if let Some(alias) = alias {
                    let own = addresses.resolve(&alias, port).await;
                    found.extend(own.unwrap_or_default());
                }
                found
            };
            let mut services = pin!(services);
            let mut own = addresses.resolve(&host, port);
            let (mut found, own) = tokio::select! {
                found = &mut services => (found, own.await),
                own = &mut own => {
                    let delay = own.is_ok().then_some(dns.delay);
                    (within(delay, services).await, own)
                }
            };
            match own {
                Ok(own) => found.extend(own),
                Err(error) if found.is_empty() => return Err(error),
                Err(_) => {}
            }
            let mut seen = HashSet::new();
            found.retain(|address| seen.insert(*address));
            Ok(found)
        })
    }
}

/// The future's output, or the default if it exceeds the limit.
async fn within<T: Default>(limit: Option<Duration>, future: impl Future<Output = T>) -> T {
    match limit {
        Some(limit) => tokio::time::timeout(limit, future)
            .await
            .unwrap_or_default(),
        None => future.await,
    }
}

impl std::fmt::Debug for Dns {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Dns").finish_non_exhaustive()
    }
}
