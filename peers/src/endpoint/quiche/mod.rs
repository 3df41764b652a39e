//! quiche, which does no I/O: a blocking loop over one socket.
//!
//! ```text
//!  mod     settings; the client's and the server's loops
//!   ├──►  port       one socket: datagrams in, with a time limit, and out
//!   └──►  exchange   one connection's requests and responses, HTTP/0.9 or HTTP/3
//! ```

mod exchange;
mod port;

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;

use http::Uri;
use quiche::{Config, ConnectionId, RecvInfo};

use self::exchange::{Exchange, Side};
use self::port::Port;
use super::files;
use super::settings::{Case, Role, Settings};
use super::{HTTP09, Outcome};

/// Bytes of our connection ids.
const ID: usize = 16;
/// Ids for future paths.
const SPARE_IDS: u64 = 4;
const IDLE_TIMEOUT_MS: u64 = 60_000;
const MAX_STREAMS: u64 = 100;
const WINDOW: u64 = 1 << 20;

type Quic = quiche::Connection;

/// What quiche lacks.
pub(super) fn missing(settings: &Settings) -> Option<&'static str> {
    match settings.case {
        Case::ChaCha20 => Some("BoringSSL has no setting for the cipher suites of TLS 1.3"),
        Case::Ecn => Some("quiche does not mark packets"),
        Case::KeyUpdate => Some("quiche has no function that updates the keys"),
        Case::Version2 => Some("quiche does not speak version 2"),
        Case::ConnectionMigration => Some("quiche announces no preferred address"),
        _ => None,
    }
}

/// Does one end's work.
pub(super) fn run(settings: &Settings) -> Outcome<()> {
    match settings.role {
        Role::Server => Server::new(settings)?.run(),
        Role::Client => fetch_all(settings),
    }
}

fn config(settings: &Settings) -> Outcome<Config> {
    let mut config = Config::new(quiche::PROTOCOL_VERSION)?;
    let path = |name| settings.certs.join(name).to_string_lossy().into_owned();
    match settings.role {
        Role::Server => {
            config.load_cert_chain_from_pem_file(&path("cert.pem"))?;
            config.load_priv_key_from_pem_file(&path("priv.key"))?;
        }
        Role::Client => {
            config.load_verify_locations_from_file(&path("ca.pem"))?;
            config.verify_peer(true);
        }
    }
    match settings.case {
        Case::Http3 => config.set_application_protos(quiche::h3::APPLICATION_PROTOCOL)?,
        _ => config.set_application_protos(&[HTTP09])?,
    }
    if settings.case == Case::ZeroRtt {
        config.enable_early_data();
    }
    config.log_keys();
    config.set_max_idle_timeout(IDLE_TIMEOUT_MS);
    config.set_initial_max_data(WINDOW);
    config.set_initial_max_stream_data_bidi_local(WINDOW);
    config.set_initial_max_stream_data_bidi_remote(WINDOW);
    config.set_initial_max_stream_data_uni(WINDOW);
    config.set_initial_max_streams_bidi(MAX_STREAMS);
    config.set_initial_max_streams_uni(MAX_STREAMS);
    config.set_active_connection_id_limit(SPARE_IDS);
    // It would only report when to send.
    config.enable_pacing(false);
    Ok(config)
}

fn log_keys(quic: &mut Quic) {
    let Some(path) = std::env::var_os("SSLKEYLOGFILE") else {
        return;
    };
    let file = std::fs::File::options()
        .create(true)
        .append(true)
        .open(path);
    if let Ok(file) = file {
        quic.set_keylog(Box::new(file));
    }
}

fn random_id() -> Outcome<ConnectionId<'static>> {
    let mut id = [0; ID];
    aws_lc_rs::rand::fill(&mut id).map_err(|_| "no random bytes")?;
    Ok(ConnectionId::from_vec(id.to_vec()))
}

/// Issues spare ids, so that the peer can change its path. Returns them.
fn issue_ids(quic: &mut Quic) -> Outcome<Vec<Vec<u8>>> {
    let mut issued = Vec::new();
    while quic.is_established() && quic.scids_left() > 0 {
        let id = random_id()?;
        let mut token = [0; 16];
        aws_lc_rs::rand::fill(&mut token).map_err(|_| "no random bytes")?;
        quic.new_scid(&id, u128::from_be_bytes(token), false)?;
        issued.push(id.to_vec());
    }
    Ok(issued)
}

/// A server's connection.
struct Entry {
    quic: Quic,
    exchange: Exchange,
}

struct Server {
    port: Port,
    config: Config,
    www: PathBuf,
    case: Case,
    connections: Vec<Entry>,
    by_id: HashMap<Vec<u8>, usize>,
}

impl Server {
    fn new(settings: &Settings) -> Outcome<Self> {
        Ok(Self {
            port: Port::bind(settings.listen)?,
            config: config(settings)?,
            www: settings.www.clone(),
            case: settings.case,
            connections: Vec::new(),
            by_id: HashMap::new(),
        })
    }

    /// Serves until the process is killed.
    fn run(&mut self) -> Outcome<()> {
        loop {
            let open = self.connections.iter().filter(|one| !one.quic.is_closed());
            let limit = open.filter_map(|one| one.quic.timeout()).min();
            if let Some((datagram, from)) = self.port.receive(limit)? {
                self.take(datagram, from)?;
            }
            for index in 0..self.connections.len() {
                self.drive(index)?;
            }
        }
    }

    fn drive(&mut self, index: usize) -> Outcome<()> {
        let Entry { quic, exchange } = &mut self.connections[index];
        if quic.is_closed() {
            return Ok(());
        }
        if quic.timeout().is_some_and(|left| left.is_zero()) {
            quic.on_timeout();
        }
        while let Some(event) = quic.path_event_next() {
            // The server validates every new path (RFC 9000 §9.3).
            if let quiche::PathEvent::New(local, peer) = event {
                quic.probe_path(local, peer)?;
            }
        }
        for id in issue_ids(quic)? {
            self.by_id.insert(id, index);
        }
        if let Err(error) = exchange.serve(quic, &self.www) {
            eprintln!("{error}");
            // Fails only if the connection is closed.
            let _ = quic.close(true, 1, b"");
        }
        self.port.send_all(quic)
    }

    fn take(&mut self, mut datagram: Vec<u8>, from: SocketAddr) -> Outcome<()> {
        let Ok(header) = quiche::Header::from_slice(&mut datagram, ID) else {
            return Ok(());
        };
        let to = self.port.local;
        let known = self.by_id.get(header.dcid.as_ref()).copied();
        let index = match known {
            Some(index) => index,
            None => match self.accept(&header, from)? {
                Some(index) => index,
                None => return Ok(()),
            },
        };
        let quic = &mut self.connections[index].quic;
        // quiche drops and counts broken packets; but if it is the first packet, quiche closes the
        // connection, and the client's next packet begins another.
        if quic.recv(&mut datagram, RecvInfo { from, to }).is_err() && quic.stats().recv == 0 {
            self.by_id.retain(|_, known| *known != index);
        }
        Ok(())
    }

    /// Makes a new connection if the packet begins one, or sends a Retry.
    fn accept(&mut self, header: &quiche::Header<'_>, from: SocketAddr) -> Outcome<Option<usize>> {
        if header.ty != quiche::Type::Initial {
            return Ok(None);
        }
        let mut out = [0; 1200];
        if !quiche::version_is_supported(header.version) {
            let len = quiche::negotiate_version(&header.scid, &header.dcid, &mut out)?;
            self.port.send(&out[..len], from)?;
            return Ok(None);
        }
        let token = header.token.as_deref().unwrap_or_default();
        if self.case == Case::Retry && token.is_empty() {
            let (id, token) = (random_id()?, token_of(from.ip(), &header.dcid));
            let (client, server) = (&header.scid, &header.dcid);
            let version = header.version;
            let len = quiche::retry(client, server, &id, &token, version, &mut out)?;
            self.port.send(&out[..len], from)?;
            return Ok(None);
        }
        let (config, local) = (&mut self.config, self.port.local);
        let (mut quic, id) = if self.case == Case::Retry {
            let Some(original) = original_of(from.ip(), token) else {
                return Ok(None);
            };
            let cids = quiche::RetryConnectionIds {
                original_destination_cid: &original,
                retry_source_cid: &header.dcid,
            };
            let id = header.dcid.clone().into_owned();
            (
                quiche::accept_with_retry(&id, cids, local, from, config)?,
                id,
            )
        } else {
            let id = random_id()?;
            (quiche::accept(&id, None, local, from, config)?, id)
        };
        log_keys(&mut quic);
        let index = self.connections.len();
        self.by_id.insert(id.to_vec(), index);
        // The client's first packets all carry the id that it chose.
        self.by_id.insert(header.dcid.to_vec(), index);
        let exchange = Exchange::new(Side::Server, self.case == Case::Http3);
        self.connections.push(Entry { quic, exchange });
        Ok(Some(index))
    }
}

/// A token that holds the client's address and the id that it chose. This server has no secrets:
/// forging a token only harms a test.
fn token_of(from: IpAddr, original: &[u8]) -> Vec<u8> {
    let mut token = octets(from).to_vec();
    token.extend_from_slice(original);
    token
}

fn original_of(from: IpAddr, token: &[u8]) -> Option<ConnectionId<'static>> {
    let original = token.strip_prefix(&octets(from))?;
    Some(ConnectionId::from_vec(original.to_vec()))
}

fn octets(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

fn fetch_all(settings: &Settings) -> Outcome<()> {
    let urls = &settings.requests[..];
    let (first, others) = urls.split_first().ok_or("REQUESTS is empty")?;
    let mut client = Client {
        port: Port::bind((Ipv6Addr::UNSPECIFIED, 0).into())?,
        config: config(settings)?,
        settings,
        session: None,
    };
    match settings.case {
        Case::MultiConnect => {
            for url in urls {
                client.session = None;
                client.fetch(std::slice::from_ref(url))?;
            }
            Ok(())
        }
        Case::Resumption | Case::ZeroRtt => {
            client.fetch(std::slice::from_ref(first))?;
            if client.session.is_none() {
                return Err("the server has sent no ticket".into());
            }
            client.fetch(others)
        }
        _ => client.fetch(urls),
    }
}

struct Client<'a> {
    port: Port,
    config: Config,
    settings: &'a Settings,
    session: Option<Vec<u8>>,
}

impl Client<'_> {
    /// Downloads files concurrently, on a connection of their own.
    fn fetch(&mut self, urls: &[Uri]) -> Outcome<()> {
        let (server, name) = files::server(self.settings, urls.first().ok_or("no URL")?)?;
        let server = port::mapped(server);
        let local = self.port.local;
        let mut quic = quiche::connect(Some(name), &random_id()?, local, server, &mut self.config)?;
        log_keys(&mut quic);
        if let Some(session) = &self.session {
            quic.set_session(session)?;
        }
        let is_http3 = self.settings.case == Case::Http3;
        let mut exchange = Exchange::new(Side::Client, is_http3);
        for url in urls {
            exchange.want(url.clone(), files::target(self.settings, url)?);
        }
        self.port.send_all(&mut quic)?;
        while !quic.is_closed() {
            exchange.fetch(&mut quic)?;
            issue_ids(&mut quic)?;
            // The ticket belongs to the connection, which must outlive its handshake to get it.
            let wants_ticket = self.settings.case != Case::Resumption
                && self.settings.case != Case::ZeroRtt
                || self.session.is_some()
                || quic.session().is_some();
            if exchange.is_done() && wants_ticket {
                // Fails if it is already closing.
                let _ = quic.close(true, if is_http3 { 0x100 } else { 0 }, b"");
            }
            self.port.send_all(&mut quic)?;
            match self.port.receive(quic.timeout())? {
                Some((mut datagram, from)) => {
                    let to = self.port.local;
                    // quiche drops and counts broken packets.
                    let _ = quic.recv(&mut datagram, RecvInfo { from, to });
                }
                None => quic.on_timeout(),
            }
        }
        self.session = quic.session().map(<[u8]>::to_vec);
        if exchange.is_done() {
            return Ok(());
        }
        let reason = quic.peer_error().or(quic.local_error());
        Err(format!("the connection is closed before its end: {reason:?}").into())
    }
}
