//! s2n-quic with s2n-tls. Its HTTP/3 crate is not published.

use std::net::{Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use http::Uri;
use s2n_quic::client::Connect;
use s2n_quic::provider::endpoint_limits::{ConnectionAttempt, Limiter, Outcome as Decision};
use s2n_quic::provider::limits::Limits;
use s2n_quic::provider::tls::s2n_tls;
use s2n_quic::stream::BidirectionalStream;
use s2n_tls::callbacks::{ConnectionFuture, SessionTicket, SessionTicketCallback};
use s2n_tls::config::ConnectionInitializer;
use tokio::io::AsyncReadExt as _;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinSet;

use super::files;
use super::settings::{Case, Role, Settings};
use super::{HTTP09, Outcome};

const CLIENT_CHAIN: u16 = 10;
/// Handshakes of `handshakeloss` may suffer several bursts of losses.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a ticket may take to arrive after a handshake.
const TICKET_PATIENCE: Duration = Duration::from_secs(5);

/// What s2n-quic lacks.
pub(super) fn missing(settings: &Settings) -> Option<&'static str> {
    match settings.case {
        Case::Http3 => Some("s2n-quic's HTTP/3 is not published"),
        Case::Version2 => Some("s2n-quic does not change the version during a handshake"),
        Case::ZeroRtt => Some("s2n-quic has no early data"),
        Case::KeyUpdate => Some("s2n-quic has no function that updates the keys"),
        Case::ChaCha20 => Some("s2n-tls has no policy with ChaCha20-Poly1305 alone"),
        Case::ConnectionMigration => Some("s2n-quic announces no preferred address"),
        _ => None,
    }
}

/// Does one end's work.
pub(super) async fn run(settings: &Settings) -> Outcome<()> {
    match settings.role {
        Role::Server => serve(settings).await,
        Role::Client => fetch_all(settings).await,
    }
}

fn limits() -> Outcome<Limits> {
    Ok(Limits::new().with_max_handshake_duration(HANDSHAKE_TIMEOUT)?)
}

/// Demands a Retry of everyone.
struct Retries;

impl Limiter for Retries {
    fn on_connection_attempt(&mut self, _: &ConnectionAttempt) -> Decision {
        Decision::retry()
    }
}

async fn serve(settings: &Settings) -> Outcome<()> {
    let (chain, key) = (
        settings.certs.join("cert.pem"),
        settings.certs.join("priv.key"),
    );
    let mut tls = s2n_tls::Server::builder()
        .with_certificate(chain.as_path(), key.as_path())?
        .with_application_protocols([HTTP09])?
        .with_key_logging()?;
    let mut ticket_key = [0; 32];
    aws_lc_rs::rand::fill(&mut ticket_key).map_err(|_| "no random bytes")?;
    tls.config_mut()
        .enable_session_tickets(true)?
        .add_session_ticket_key(b"one run", &ticket_key, SystemTime::now())?;
    let builder = s2n_quic::Server::builder()
        .with_tls(tls.build()?)?
        .with_io(settings.listen)?
        .with_limits(limits()?)?;
    let mut server = if settings.case == Case::Retry {
        builder.with_endpoint_limits(Retries)?.start()?
    } else {
        builder.start()?
    };
    let mut terminate = signal(SignalKind::terminate())?;
    loop {
        let connection = tokio::select! {
            connection = server.accept() => connection,
            _ = terminate.recv() => None,
        };
        let Some(mut connection) = connection else {
            return Ok(());
        };
        let www = settings.www.clone();
        tokio::spawn(async move {
            while let Ok(Some(stream)) = connection.accept_bidirectional_stream().await {
                tokio::spawn(answer(stream, www.clone()));
            }
        });
    }
}

async fn answer(mut stream: BidirectionalStream, www: PathBuf) {
    let mut line = Vec::new();
    let answered = async {
        stream.read_to_end(&mut line).await?;
        stream.send(files::answer(&www, &line)?.into()).await?;
        stream.finish()?;
        Outcome::Ok(())
    };
    if let Err(error) = answered.await {
        eprintln!("{error}");
        let _ = stream.reset(1_u32.into());
    }
}

/// The newest ticket.
#[derive(Clone, Default)]
struct Tickets(Arc<Mutex<Option<Vec<u8>>>>);

impl Tickets {
    fn newest(&self) -> Option<Vec<u8>> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    async fn wait(&self) -> Outcome<()> {
        let came = async {
            while self.newest().is_none() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(TICKET_PATIENCE, came)
            .await
            .map_err(|_| "the server has sent no ticket".into())
    }
}

impl SessionTicketCallback for Tickets {
    fn on_session_ticket(
        &self,
        _connection: &mut s2n_tls::connection::Connection,
        ticket: &SessionTicket,
    ) {
        let mut bytes = vec![0; ticket.len().unwrap_or_default()];
        if ticket.data(&mut bytes).is_ok() {
            *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(bytes);
        }
    }
}

impl ConnectionInitializer for Tickets {
    fn initialize_connection(
        &self,
        connection: &mut s2n_tls::connection::Connection,
    ) -> Result<Option<Pin<Box<dyn ConnectionFuture>>>, s2n_tls::error::Error> {
        if let Some(ticket) = self.newest() {
            connection.set_session_ticket(&ticket)?;
        }
        Ok(None)
    }
}

async fn fetch_all(settings: &Settings) -> Outcome<()> {
    let (roots, tickets) = (settings.certs.join("ca.pem"), Tickets::default());
    let mut tls = s2n_tls::Client::builder()
        .with_empty_trust_store()?
        .with_certificate(roots.as_path())?
        .with_application_protocols([HTTP09])?
        .with_max_cert_chain_depth(CLIENT_CHAIN)?
        .with_key_logging()?;
    if settings.case == Case::Resumption {
        tls.config_mut()
            .enable_session_tickets(true)?
            .set_session_ticket_callback(tickets.clone())?
            .set_connection_initializer(tickets.clone())?;
    }
    let mut client = s2n_quic::Client::builder()
        .with_tls(tls.build()?)?
        .with_io(SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)))?
        .with_limits(limits()?)?
        .start()?;
    let urls = &settings.requests[..];
    let (first, others) = urls.split_first().ok_or("REQUESTS is empty")?;
    match settings.case {
        Case::MultiConnect => {
            for url in urls {
                fetch(&client, settings, std::slice::from_ref(url)).await?;
            }
        }
        Case::Resumption => {
            fetch(&client, settings, std::slice::from_ref(first)).await?;
            tickets.wait().await?;
            fetch(&client, settings, others).await?;
        }
        _ => fetch(&client, settings, urls).await?,
    }
    client.wait_idle().await?;
    Ok(())
}

/// Downloads files concurrently, on a connection of their own.
async fn fetch(client: &s2n_quic::Client, settings: &Settings, urls: &[Uri]) -> Outcome<()> {
    let (address, name) = files::server(settings, urls.first().ok_or("no URL")?)?;
    let connect = Connect::new(address).with_server_name(name);
    let connection = client.connect(connect).await?;
    let mut fetches = JoinSet::new();
    for url in urls {
        let (handle, request) = (connection.handle(), files::request(url));
        let target = files::target(settings, url)?;
        fetches.spawn(async move { download(handle, request, &target).await });
    }
    while let Some(fetched) = fetches.join_next().await {
        fetched??;
    }
    connection.close(0_u32.into());
    Ok(())
}

async fn download(
    mut connection: s2n_quic::connection::Handle,
    request: String,
    target: &Path,
) -> Outcome<()> {
    let mut stream = connection.open_bidirectional_stream().await?;
    stream.send(request.into()).await?;
    stream.finish()?;
    let mut file = Vec::new();
    stream.read_to_end(&mut file).await?;
    std::fs::write(target, file)?;
    Ok(())
}
