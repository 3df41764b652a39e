//! `squall bench idle`: what idle connections cost a server.
//!
//! ```text
//!   this process                          a child: squall bench idle --serve
//!   N clients' connections  ──────────►   a server that accepts, and waits
//!   reads the child's memory and CPU time from the system, before and after
//! ```
//! Keep-alive is off at both ends, and the idle timeout is very long.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use squall::{
    Builder, Bytes, ClientConfig, Connection, Endpoint, RecvStream, SendStream, ServerConfig,
    TransportConfig, WriteError,
};
use squall_yard::certificate::{self, Certificate, NAME};
use squall_yard::error::{Failure, Result, context};
use squall_yard::sys;

use super::args::Idle;
use crate::output::{print_json, say};

/// The application protocol of this measurement.
const ALPN: &[u8] = b"idle";
/// Concurrent handshakes.
const AT_A_TIME: usize = 50;
/// How long it takes until the last packets of handshakes are sent (tickets, tokens,
/// acknowledgements, probes of the path), and then until memory is freed.
const SETTLE: Duration = Duration::from_secs(8);
/// The longest time that the server's allocator takes to return memory.
const TRIM: Duration = Duration::from_millis(500);
/// No connection ends by itself.
const IDLE_TIMEOUT: Duration = Duration::from_secs(3600);

/// The results.
#[derive(Debug, Serialize)]
struct IdleReport {
    connections: usize,
    /// Bytes that every connection transferred each way beforehand.
    moved: u64,
    /// Growth of the server's resident memory, in bytes per connection.
    server_rss_per_connection: f64,
    /// The server's resident memory without connections, in bytes.
    server_rss_before: u64,
    /// The server's CPU time during the measurement, in milliseconds.
    server_cpu_ms: f64,
    seconds: f64,
}

/// Runs the command.
pub(crate) fn main(args: &Idle) -> Result<()> {
    if args.serve {
        return serve(args.connections);
    }
    let mut server = Server::start(args.connections)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .map_err(context("cannot start"))?;
    let report = runtime.block_on(async {
        let client = client(server.address, args.connections)?;
        // One connection goes first, to exclude one-time costs.
        let first = connect(&client, server.address, 1).await?;
        move_data(&first, args.moved.unwrap_or(0)).await?;
        tokio::time::sleep(Duration::from_millis(500)).await;
        let before = server.rss().await?;
        let connections = connect(&client, server.address, args.connections).await?;
        move_data(&connections, args.moved.unwrap_or(0)).await?;
        tokio::time::sleep(SETTLE).await;
        let after = server.rss().await?;
        let cpu = server.cpu()?;
        tokio::time::sleep(args.time).await;
        let cpu = server.cpu()?.saturating_sub(cpu);
        let ended = (connections.iter().chain(&first)).find_map(Connection::close_reason);
        if let Some(reason) = ended {
            return Err(Failure::new(format!("a connection ended: {reason}")));
        }
        Ok(IdleReport {
            connections: args.connections,
            moved: args.moved.unwrap_or(0),
            server_rss_per_connection: after.saturating_sub(before) as f64
                / args.connections as f64,
            server_rss_before: before,
            server_cpu_ms: cpu.as_secs_f64() * 1e3,
            seconds: args.time.as_secs_f64(),
        })
    })?;
    server.stop();
    if args.json {
        return print_json(&report);
    }
    say(&format!(
        "{} idle connections{}, keep-alive off\n\
         server memory  {:.1} kB per connection (resident; {:.1} MB without connections)\n\
         server CPU     {:.2} ms in {:.0} s",
        report.connections,
        match report.moved {
            0 => String::new(),
            moved => format!(" that moved {:.1} MB each way", moved as f64 / 1e6),
        },
        report.server_rss_per_connection / 1e3,
        report.server_rss_before as f64 / 1e6,
        report.server_cpu_ms,
        report.seconds,
    ));
    Ok(())
}

fn transport() -> Arc<TransportConfig> {
    Arc::new(
        TransportConfig::default()
            .max_idle_timeout(IDLE_TIMEOUT)
            .keep_alive(None),
    )
}

/// The child: accepts, prints its address, and waits for the end of its input.
fn serve(connections: usize) -> Result<()> {
    let mut tls = Certificate::generate()?.server(squall::provider())?;
    tls.alpn_protocols = vec![ALPN.to_vec()];
    let config = ServerConfig::new(tls).transport(transport());
    let endpoint = Builder::new((Ipv4Addr::LOCALHOST, 0).into())
        .server(config)
        .max_connections(connections + 2)
        .bind()
        .map_err(context("cannot start the server"))?;
    say(&endpoint
        .local_addr()
        .map_err(context("no address"))?
        .to_string());
    let serving = endpoint.clone();
    endpoint.spawn(async move {
        serving
            .serve(|connection| async move {
                while let Ok((send, recv)) = connection.accept_bi().await {
                    // A stream that fails ends its connection, which the client notices.
                    connection.spawn(give_back(send, recv));
                }
            })
            .await;
    });
    // With a byte, the parent asks for free memory to be returned to the system; by closing the
    // pipe, it ends this process.
    for _ in std::io::stdin().lock().bytes() {
        sys::trim_memory();
    }
    Ok(())
}

/// Bytes of one write.
const PIECE: usize = 64 * 1024;
/// Connections that transfer data at a time.
const MOVING: usize = 8;

/// Makes every connection send this many bytes and receive as many.
async fn move_data(connections: &[Connection], bytes: u64) -> Result<()> {
    if bytes == 0 {
        return Ok(());
    }
    for part in connections.chunks(MOVING) {
        let tasks: Vec<_> = (part.iter().cloned())
            .map(|connection| {
                let worker = connection.clone();
                worker.spawn(async move { move_both_ways(&connection, bytes).await })
            })
            .collect();
        for task in tasks {
            task.await.map_err(context("a transfer was cut short"))??;
        }
    }
    Ok(())
}

async fn move_both_ways(connection: &Connection, bytes: u64) -> Result<()> {
    let (mut send, mut recv) = (connection.open_bi().await).map_err(context("no stream"))?;
    write(&mut send, bytes)
        .await
        .map_err(context("cannot send"))?;
    let mut received = 0;
    while let Some(chunk) =
        (recv.read_chunk(usize::MAX).await).map_err(context("cannot receive"))?
    {
        received += chunk.len() as u64;
    }
    match received == bytes {
        true => Ok(()),
        false => Err(Failure::new(format!(
            "the server returned {received} bytes"
        ))),
    }
}

/// Answers a stream with as many bytes as it received.
async fn give_back(mut send: SendStream, mut recv: RecvStream) {
    let mut received = 0;
    while let Ok(Some(chunk)) = recv.read_chunk(usize::MAX).await {
        received += chunk.len() as u64;
    }
    // An error means that the client has given up.
    let _ = write(&mut send, received).await;
}

async fn write(send: &mut SendStream, bytes: u64) -> std::result::Result<(), WriteError> {
    let piece = Bytes::from_static(&[0; PIECE]);
    let mut left = bytes;
    while left > 0 {
        let len = left.min(PIECE as u64);
        send.write_chunk(piece.slice(..len as usize)).await?;
        left -= len;
    }
    send.finish()
}

/// The server, as seen by its parent.
struct Server {
    child: Child,
    address: SocketAddr,
}

impl Server {
    fn start(connections: usize) -> Result<Self> {
        let program = std::env::current_exe().map_err(context("cannot find this program"))?;
        let mut child = Command::new(program)
            .args(["bench", "idle", "--serve", "--connections"])
            .arg(connections.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(context("cannot start the server"))?;
        let mut line = String::new();
        if let Some(out) = child.stdout.take() {
            BufReader::new(out)
                .read_line(&mut line)
                .map_err(context("no output from the server"))?;
        }
        let address = line
            .trim()
            .parse()
            .map_err(|_| Failure::new("the server did not start"))?;
        Ok(Self { child, address })
    }

    /// Resident memory in bytes, without freed memory that the allocator keeps.
    async fn rss(&mut self) -> Result<u64> {
        if let Some(input) = &mut self.child.stdin {
            (input.write_all(b"t").and_then(|()| input.flush()))
                .map_err(context("the server process ended"))?;
        }
        tokio::time::sleep(TRIM).await;
        let path = format!("/proc/{}/status", self.child.id());
        let status = std::fs::read_to_string(&path)
            .map_err(context("cannot read the server's memory (Linux only)"))?;
        let kilobytes = status
            .lines()
            .find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB"))
            .and_then(|number| number.parse::<u64>().ok());
        kilobytes
            .map(|kilobytes| kilobytes * 1024)
            .ok_or_else(|| Failure::new(format!("no VmRSS in {path}")))
    }

    fn cpu(&self) -> Result<Duration> {
        i32::try_from(self.child.id())
            .ok()
            .and_then(sys::process_cpu_of)
            .ok_or_else(|| Failure::new("cannot read the server's CPU time (Linux only)"))
    }

    fn stop(&mut self) {
        drop(self.child.stdin.take());
        // It has nothing more to report.
        let _ = self.child.wait();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

fn client(server: SocketAddr, connections: usize) -> Result<Endpoint> {
    let mut tls = certificate::trusting_anyone(squall::provider())?;
    tls.alpn_protocols = vec![ALPN.to_vec()];
    let config = ClientConfig::new(tls).transport(transport());
    let mut any = server;
    any.set_port(0);
    Builder::new(any)
        .client(config)
        .max_connections(connections + 1)
        .bind()
        .map_err(context("cannot start the client"))
}

async fn connect(client: &Endpoint, server: SocketAddr, count: usize) -> Result<Vec<Connection>> {
    let mut connections = Vec::with_capacity(count);
    while connections.len() < count {
        let part = AT_A_TIME.min(count - connections.len());
        let mut connecting = Vec::with_capacity(part);
        for _ in 0..part {
            let one = client.connect(server, NAME);
            connecting.push(one.map_err(context("cannot connect"))?);
        }
        for one in connecting {
            connections.push(one.await.map_err(context("cannot connect"))?);
        }
    }
    Ok(connections)
}
