//! An echo server whose metrics Prometheus can scrape.
//!
//! ```sh
//! cargo run --example prometheus --features metrics,self-signed -- [::]:4433 127.0.0.1:9000
//! curl http://127.0.0.1:9000/metrics
//! ```

use std::error::Error;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use metrics_exporter_prometheus::{Matcher, PrometheusBuilder};
use squall::metrics::Metrics;
use squall::tls::{self, Identity};
use squall::{Builder, Connection, Endpoint, ServerConfig};

const ALPN: &[u8] = b"echo";
/// How old the published counters may be.
const PUBLISH_EVERY: Duration = Duration::from_millis(500);
/// Upper bounds of the histogram of handshakes, in seconds.
const HANDSHAKES: &[f64] = &[0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0];
/// Upper bounds of the histogram of connections, in seconds.
const CONNECTIONS: &[f64] = &[0.1, 1.0, 10.0, 60.0, 600.0, 3600.0, 86400.0];

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

#[tokio::main]
async fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [quic, http] = &args[..] else {
        return Err("usage: prometheus ADDRESS METRICS_ADDRESS".into());
    };
    let (server, _) = start(quic.parse()?, http.parse()?)?;
    tokio::signal::ctrl_c().await?;
    server.shutdown(0, b"the server ends").await;
    Ok(())
}

/// Starts the server and its metrics endpoint; returns the identity that clients must trust.
fn start(quic: SocketAddr, http: SocketAddr) -> Result<(Endpoint, Identity)> {
    PrometheusBuilder::new()
        .with_http_listener(http)
        .set_buckets_for_metric(Matcher::Prefix("squall_handshake".to_owned()), HANDSHAKES)?
        .set_buckets_for_metric(Matcher::Prefix("squall_connection".to_owned()), CONNECTIONS)?
        .install()?;

    let metrics = Arc::new(Metrics::new("echo"));
    let identity = Identity::self_signed(["localhost"])?;
    let config = ServerConfig::new(tls::server(identity.clone(), &[ALPN])?);
    let server = Builder::new(quic)
        .server(config)
        .events(metrics.clone())
        .bind()?;

    let (accepting, published) = (server.clone(), server.clone());
    tokio::spawn(async move { accepting.serve(echo).await });
    tokio::spawn(async move {
        loop {
            metrics.publish(&published);
            tokio::time::sleep(PUBLISH_EVERY).await;
        }
    });
    Ok((server, identity))
}

async fn echo(connection: Connection) {
    while let Ok((mut send, mut recv)) = connection.accept_bi().await {
        connection.spawn(async move {
            while let Ok(Some(chunk)) = recv.read_chunk(usize::MAX).await {
                if send.write_chunk(chunk).await.is_err() {
                    return;
                }
            }
            let _ = send.finish();
        });
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{TcpListener, TcpStream};

    use squall::ClientConfig;

    use super::*;

    const ANY: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

    /// What Prometheus would receive.
    fn scrape(http: SocketAddr) -> String {
        let mut stream = TcpStream::connect(http).unwrap();
        let request = format!("GET /metrics HTTP/1.1\r\nHost: {http}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
        answer
    }

    /// The value of one series; its labels are sorted.
    fn value(scraped: &str, name: &str, labels: &[&str]) -> Option<f64> {
        scraped.lines().find_map(|line| {
            let (series, value) = line.rsplit_once(' ')?;
            let (found, inside) = series.strip_suffix('}')?.split_once('{')?;
            let mut has: Vec<&str> = inside.split(',').collect();
            let mut wanted = labels.to_vec();
            wanted.push("endpoint=\"echo\"");
            has.sort_unstable();
            wanted.sort_unstable();
            (found == name && has == wanted).then(|| value.parse().ok())?
        })
    }

    /// Scrapes until `done`, since counters are published twice a second.
    async fn until(http: SocketAddr, done: impl Fn(&str) -> bool) -> String {
        for _ in 0..200 {
            let scraped = tokio::task::spawn_blocking(move || scrape(http))
                .await
                .unwrap();
            if done(&scraped) {
                return scraped;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("{}", scrape(http));
    }

    #[tokio::test]
    async fn scraped_metrics_match_what_happened() {
        // Still free when bound again, barring bad luck.
        let http = TcpListener::bind(ANY).unwrap().local_addr().unwrap();
        let (server, identity) = start(ANY, http).unwrap();
        let tls = tls::client(identity.roots().unwrap(), &[ALPN]).unwrap();
        let client = Builder::new(ANY)
            .client(ClientConfig::new(tls))
            .bind()
            .unwrap();
        let mut connections = Vec::new();
        for round in 0..3 {
            let address = server.local_addr().unwrap();
            let connection = client.connect(address, "localhost").unwrap().await.unwrap();
            let (mut send, mut recv) = connection.open_bi().await.unwrap();
            send.write_all(&[7; 10_000]).await.unwrap();
            send.finish().unwrap();
            assert_eq!(recv.read_to_end(10_000).await.unwrap().len(), 10_000);
            if round == 0 {
                while !connection.force_key_update() {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                connection
                    .send_datagram(squall::Bytes::from_static(b"new keys"))
                    .unwrap();
            }
            connections.push(connection);
            // The ticket for the next connection comes after the handshake.
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let server_side = "side=\"server\"";
        let scraped = until(http, |scraped| {
            value(scraped, "squall_connections", &[]) == Some(3.0)
                && value(
                    scraped,
                    "squall_key_updates_total",
                    &[server_side, "by=\"peer\""],
                ) == Some(1.0)
        })
        .await;
        let started = value(&scraped, "squall_connections_started_total", &[server_side]);
        assert_eq!(started, Some(3.0));
        let completed = |resumed: &str| {
            let labels = [server_side, "version=\"1\"", resumed];
            value(&scraped, "squall_handshakes_completed_total", &labels).unwrap_or(0.0)
        };
        let (full, resumed) = (
            completed("resumed=\"false\""),
            completed("resumed=\"true\""),
        );
        assert!(full >= 1.0 && full + resumed == 3.0, "{full} and {resumed}");
        let timed = value(
            &scraped,
            "squall_handshake_duration_seconds_count",
            &[server_side],
        );
        assert_eq!(timed, Some(3.0));
        let bytes = value(&scraped, "squall_udp_received_bytes_total", &[]).unwrap();
        assert!(
            bytes > 30_000.0 && bytes <= server.stats().udp.bytes_received as f64,
            "{bytes}"
        );
        assert_eq!(value(&scraped, "squall_event_panics_total", &[]), Some(0.0));
        let help = "# HELP squall_connections_started_total Connections that began";
        assert!(scraped.contains(help), "{scraped}");

        // Two connections closed by the client, one by the server, and one refused attempt.
        let closed = |scraped: &str, by: &str| {
            let labels = [server_side, "reason=\"application\"", by];
            value(scraped, "squall_connections_closed_total", &labels)
        };
        for connection in &connections[..2] {
            connection.close(0, b"");
        }
        let by_peer = |scraped: &str| closed(scraped, "by=\"peer\"") == Some(2.0);
        until(http, by_peer).await;
        server.close(0, b"");
        let refused = client
            .connect(server.local_addr().unwrap(), "localhost")
            .unwrap();
        refused.await.unwrap_err();
        let scraped = until(http, |scraped| {
            closed(scraped, "by=\"self\"") == Some(1.0)
                && value(scraped, "squall_connections", &[]) == Some(0.0)
        })
        .await;
        let why = ["reason=\"closed\""];
        assert!(value(&scraped, "squall_attempts_refused_total", &why) >= Some(1.0));
        let lasted = value(
            &scraped,
            "squall_connection_duration_seconds_count",
            &[server_side],
        );
        assert_eq!(lasted, Some(3.0));
    }
}
