//! The application's own congestion control: a client that sends at a fixed rate, for links that
//! carry no other traffic: `cargo run --release --example fixed_rate`.

use std::error::Error;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use squall::rustls::RootCertStore;
use squall::rustls::pki_types::PrivatePkcs8KeyDer;
use squall::{
    AckedBundle, Builder, ClientConfig, CongestionController, CongestionControllerFactory,
    Endpoint, ServerConfig, Time, TransportConfig,
};

const ANY_PORT: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
const ALPN: &[u8] = b"fixed-rate";
/// 80 Mbit/s.
const BYTES_PER_SECOND: u64 = 10_000_000;
/// Two seconds' worth.
const BYTES: usize = 20_000_000;

/// Makes a controller for each path.
#[derive(Debug)]
struct FixedRates;

impl CongestionControllerFactory for FixedRates {
    fn new_controller(&self, max_datagram: u16) -> Box<dyn CongestionController> {
        Box::new(FixedRate {
            window: 10 * u64::from(max_datagram),
        })
    }
}

/// Paces at the rate, and allows enough in flight that the window never holds it back.
struct FixedRate {
    window: u64,
}

impl CongestionController for FixedRate {
    fn window(&self) -> u64 {
        self.window
    }

    fn pacing_rate(&self) -> Option<u64> {
        Some(BYTES_PER_SECOND)
    }

    fn on_acked(&mut self, _: Time, acked: &AckedBundle) {
        // Acknowledgements may be delayed by 25 ms (RFC 9000 §18.2).
        let patience = 2 * acked.rtt.smoothed + Duration::from_millis(50);
        self.window = (BYTES_PER_SECOND as f64 * patience.as_secs_f64()) as u64;
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let identity = rcgen::generate_simple_self_signed(["localhost".to_owned()])?;
    let certificate = identity.cert.der().clone();
    let key = PrivatePkcs8KeyDer::from(identity.signing_key.serialize_der());

    let tls = squall::server_tls(vec![certificate.clone()], key.into(), &[ALPN])?;
    let server = Builder::new(ANY_PORT)
        .server(ServerConfig::new(tls))
        .bind()?;
    let serving = server.clone();
    tokio::spawn(async move { serving.serve(swallow).await });

    let mut roots = RootCertStore::empty();
    roots.add(certificate)?;
    let transport = TransportConfig::default().congestion_controller(Some(Arc::new(FixedRates)));
    let config = ClientConfig::new(squall::client_tls(roots, &[ALPN])?).transport(transport);
    let client = Endpoint::client(ANY_PORT)?;
    let connection = client
        .connect_with(config, server.local_addr()?, "localhost")?
        .await?;

    let began = Instant::now();
    let mut send = connection.open_uni().await?;
    send.write_all(&vec![7; BYTES]).await?;
    send.finish()?;
    send.stopped().await?;
    let rate = BYTES as f64 / began.elapsed().as_secs_f64();
    println!("asked for {BYTES_PER_SECOND} bytes/s, sent {rate:.0}");

    connection.shutdown(0, b"done").await;
    server.shutdown(0, b"").await;
    Ok(())
}

/// Reads and discards what arrives.
async fn swallow(connection: squall::Connection) {
    while let Ok(mut recv) = connection.accept_uni().await {
        while let Ok(Some(_)) = recv.read_chunk(usize::MAX).await {}
    }
}
