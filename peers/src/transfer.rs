//! Moves bytes both ways at once between squall and quinn over loopback, each as client and as
//! server.

use std::error::Error;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use rustls::RootCertStore;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};

use crate::payload::{Sink, Source};

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

const ALPN: &[u8] = b"squall-peers";
const NAME: &str = "localhost";
const SEED_TO_QUINN: u64 = 1;
const SEED_FROM_QUINN: u64 = 2;

/// Moves bytes both ways at once between squall and quinn over loopback, in both roles, and
/// compares digests.
#[derive(clap::Args)]
pub(crate) struct Transfer {
    /// Bytes each way; K, M and G are powers of ten.
    #[arg(long, default_value = "100M", value_parser = parse_size)]
    bytes: u64,
}

fn parse_size(text: &str) -> Result<u64, &'static str> {
    let (digits, unit) = match text.as_bytes().last() {
        Some(b'K') => (&text[..text.len() - 1], 1_000),
        Some(b'M') => (&text[..text.len() - 1], 1_000_000),
        Some(b'G') => (&text[..text.len() - 1], 1_000_000_000),
        _ => (text, 1),
    };
    (digits.parse::<u64>().ok())
        .and_then(|count| count.checked_mul(unit))
        .ok_or("a whole number, K, M or G behind it if wanted")
}

/// A self-signed certificate and its key.
struct Identity {
    certificate: CertificateDer<'static>,
    key: PrivatePkcs8KeyDer<'static>,
}

impl Identity {
    fn new() -> Outcome<Self> {
        let made = rcgen::generate_simple_self_signed([NAME.to_owned()])?;
        let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
        Ok(Self {
            certificate: made.cert.der().clone(),
            key,
        })
    }

    fn roots(&self) -> Outcome<RootCertStore> {
        let mut roots = RootCertStore::empty();
        roots.add(self.certificate.clone())?;
        Ok(roots)
    }
}

/// A connection as its two ends see it.
struct Pair {
    squall: squall::Connection,
    quinn: quinn::Connection,
    endpoints: (squall::Endpoint, quinn::Endpoint),
}

/// Moves the bytes each way in both roles and prints the digests; an error if anything arrives
/// changed.
pub(crate) fn run(args: &Transfer) -> Outcome<()> {
    let bytes = args.bytes;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    runtime.block_on(async {
        transfer(
            "squall client, quinn server",
            squall_to_quinn().await?,
            bytes,
        )
        .await?;
        transfer(
            "quinn client, squall server",
            quinn_to_squall().await?,
            bytes,
        )
        .await
    })
}

async fn squall_to_quinn() -> Outcome<Pair> {
    let identity = Identity::new()?;
    let mut tls =
        rustls::ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_no_client_auth()
            .with_single_cert(
                vec![identity.certificate.clone()],
                identity.key.clone_key().into(),
            )?;
    tls.alpn_protocols = vec![ALPN.to_vec()];
    let crypto = QuicServerConfig::try_from(tls)?;
    let server =
        quinn::Endpoint::server(quinn::ServerConfig::with_crypto(Arc::new(crypto)), any())?;

    let tls = Arc::new(squall::client_tls(identity.roots()?, &[ALPN])?);
    let config = squall::ClientConfig::new(tls);
    let client = squall::Builder::new(any()).client(config).bind()?;
    let connecting = client.connect(server.local_addr()?, NAME)?;
    let accepting = async {
        Outcome::Ok(
            server
                .accept()
                .await
                .ok_or("quinn's endpoint is closed")?
                .await?,
        )
    };
    let (squall, quinn) = tokio::try_join!(async { Outcome::Ok(connecting.await?) }, accepting)?;
    Ok(Pair {
        squall,
        quinn,
        endpoints: (client, server),
    })
}

async fn quinn_to_squall() -> Outcome<Pair> {
    let identity = Identity::new()?;
    let roots = identity.roots()?;
    let tls = squall::server_tls(vec![identity.certificate], identity.key.into(), &[ALPN])?;
    let config = squall::ServerConfig::new(tls);
    let server = squall::Endpoint::server(any(), config)?;

    let mut tls =
        rustls::ClientConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
            .with_protocol_versions(&[&rustls::version::TLS13])?
            .with_root_certificates(roots)
            .with_no_client_auth();
    tls.alpn_protocols = vec![ALPN.to_vec()];
    let crypto = QuicClientConfig::try_from(tls)?;
    let mut client = quinn::Endpoint::client(any())?;
    client.set_default_client_config(quinn::ClientConfig::new(Arc::new(crypto)));
    let connecting = client.connect(server.local_addr()?, NAME)?;
    let accepting = async {
        Outcome::Ok(
            server
                .accept()
                .await
                .ok_or("squall's endpoint is closed")?
                .await?,
        )
    };
    let (quinn, squall) = tokio::try_join!(async { Outcome::Ok(connecting.await?) }, accepting)?;
    Ok(Pair {
        squall,
        quinn,
        endpoints: (server, client),
    })
}

/// Any port of this machine's own address.
fn any() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

async fn transfer(roles: &str, pair: Pair, bytes: u64) -> Outcome<()> {
    let began = Instant::now();
    let (squall, quinn) = (pair.squall.clone(), pair.quinn.clone());
    // Four tasks: each end reads and writes at the same time.
    let to_quinn = tokio::spawn(squall_sends(squall.clone(), bytes));
    let from_quinn = tokio::spawn(quinn_sends(quinn.clone(), bytes));
    let at_quinn = tokio::spawn(quinn_receives(quinn));
    let at_squall = tokio::spawn(squall_receives(squall));
    let (to_quinn, from_quinn) = (to_quinn.await??, from_quinn.await??);
    let (at_quinn, at_squall) = (at_quinn.await??, at_squall.await??);
    let seconds = began.elapsed().as_secs_f64();

    let stats = pair.squall.stats();
    println!("{roles}: {bytes} bytes each way in {seconds:.2} s");
    println!("  to quinn    sha256 {to_quinn}");
    println!("  from quinn  sha256 {from_quinn}");
    println!(
        "  squall: {} packets sent, {} lost, {} key updates, {} KB window at the end",
        stats.packets_sent,
        stats.packets_lost,
        stats.key_updates,
        stats.congestion_window / 1000,
    );
    if at_quinn != (bytes, to_quinn) {
        return Err(format!("{roles}: quinn received something else: {at_quinn:?}").into());
    }
    if at_squall != (bytes, from_quinn) {
        return Err(format!("{roles}: squall received something else: {at_squall:?}").into());
    }
    pair.squall.close(0, b"done");
    let told = tokio::time::timeout(Duration::from_secs(5), pair.quinn.closed()).await?;
    println!("  quinn saw: {told}");
    drop(pair.endpoints);
    Ok(())
}

async fn squall_sends(connection: squall::Connection, bytes: u64) -> Outcome<String> {
    let mut source = Source::new(SEED_TO_QUINN, bytes);
    let mut to = connection.open_uni().await?;
    while let Some(chunk) = source.chunk() {
        to.write_chunk(chunk.into()).await?;
    }
    to.finish()?;
    match to.stopped().await? {
        None => Ok(source.digest()),
        Some(code) => Err(format!("quinn stopped the stream with code {code}").into()),
    }
}

async fn quinn_sends(connection: quinn::Connection, bytes: u64) -> Outcome<String> {
    let mut source = Source::new(SEED_FROM_QUINN, bytes);
    let mut to = connection.open_uni().await?;
    while let Some(chunk) = source.chunk() {
        to.write_chunk(chunk.into()).await?;
    }
    to.finish()?;
    match to.stopped().await? {
        None => Ok(source.digest()),
        Some(code) => Err(format!("squall stopped the stream with code {code}").into()),
    }
}

async fn squall_receives(connection: squall::Connection) -> Outcome<(u64, String)> {
    let mut sink = Sink::default();
    let mut from = connection.accept_uni().await?;
    while let Some(chunk) = from.read_chunk(usize::MAX).await? {
        sink.take(&chunk);
    }
    Ok(sink.end())
}

async fn quinn_receives(connection: quinn::Connection) -> Outcome<(u64, String)> {
    let mut sink = Sink::default();
    let mut from = connection.accept_uni().await?;
    while let Some(chunk) = from.read_chunk(usize::MAX, true).await? {
        sink.take(&chunk.bytes);
    }
    Ok(sink.end())
}
