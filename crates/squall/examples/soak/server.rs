//! The server's process: does what the streams' heads say, sends datagrams back, and checks all
//! that arrives.

use std::collections::{HashSet, VecDeque};
use std::io::Write;
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use squall::rustls::pki_types::PrivatePkcs8KeyDer;
use squall::{Builder, Connection, RecvStream, SendStream, ServerConfig};

use crate::content::{Check, Head, Kind, content, mix};
use crate::faults::PORT;
use crate::load::{ALPN, CHUNK, SEND_BUFFER, transport};
use crate::pulse::{Pulse, Trouble, fail};

/// Uploads that are remembered.
const REMEMBERED: usize = 100_000;

#[derive(Default)]
struct Uploads {
    whole: HashSet<u64>,
    order: VecDeque<u64>,
}

impl Uploads {
    fn add(&mut self, id: u64) {
        self.whole.insert(id);
        self.order.push_back(id);
        if self.order.len() > REMEMBERED
            && let Some(oldest) = self.order.pop_front()
        {
            self.whole.remove(&oldest);
        }
    }
}

#[derive(Default)]
struct Server {
    pulse: Arc<Pulse>,
    uploads: Mutex<Uploads>,
}

pub(crate) fn run() -> ExitCode {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let served = runtime
        .map_err(Trouble::from)
        .and_then(|runtime| runtime.block_on(serve()));
    if let Err(trouble) = served {
        fail(&format!("the server: {trouble:?}"));
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

async fn serve() -> Result<(), Trouble> {
    let identity = rcgen::generate_simple_self_signed(["localhost".to_owned()])?;
    let certificate = identity.cert.der().clone();
    let key = PrivatePkcs8KeyDer::from(identity.signing_key.serialize_der());
    let config = ServerConfig::new(squall::server_tls(
        vec![certificate.clone()],
        key.into(),
        &[ALPN],
    )?)
    .transport(transport());
    // Small, so that slow links fill them.
    let builder = Builder::new(([0, 0, 0, 0], PORT).into())
        .server(config)
        .send_buffer(SEND_BUFFER);
    let endpoint = builder.workers(2).bind()?;
    let mut hex = String::new();
    for byte in certificate.iter() {
        hex.push_str(&format!("{byte:02x}"));
    }
    println!("certificate {hex}");
    let server = Arc::new(Server::default());
    let (serving, pulse) = (endpoint.clone(), Arc::clone(&server.pulse));
    tokio::spawn(async move {
        let handler = move |connection| handle(Arc::clone(&server), connection);
        serving.serve(handler).await;
    });
    let watched = endpoint.clone();
    tokio::spawn(async move {
        while let Some(end) = watched.worker_ended().await {
            fail(&format!("the server: {end}"));
        }
    });
    pulse.beat(&endpoint).await;
    endpoint.close(0, b"the soak is over");
    endpoint.wait_idle().await;
    let _ = std::io::stdout().flush();
    Ok(())
}

async fn handle(server: Arc<Server>, connection: Connection) {
    let pulse = &server.pulse;
    pulse.connections_made.fetch_add(1, Ordering::Relaxed);
    let datagrams = connection.spawn({
        let (connection, server) = (connection.clone(), Arc::clone(&server));
        async move { send_back(&server, &connection).await }
    });
    let uploads = connection.spawn({
        let (connection, server) = (connection.clone(), Arc::clone(&server));
        async move {
            while let Ok(recv) = connection.accept_uni().await {
                let server = Arc::clone(&server);
                connection.spawn(async move {
                    if let Err(trouble) = upload(&server, recv).await {
                        server.pulse.error("upload, received", None, trouble);
                    }
                });
            }
        }
    });
    while let Ok((send, recv)) = connection.accept_bi().await {
        let (server, inner) = (Arc::clone(&server), connection.clone());
        connection.spawn(async move {
            if let Err(trouble) = answer(&server, &inner, send, recv).await {
                server.pulse.error("request, received", None, trouble);
            }
        });
    }
    let reason = connection.closed().await;
    pulse.count(&format!("connection: {reason}"));
    // Everything that arrived can still be read after the end.
    let _ = uploads.await;
    let _ = datagrams.await;
}

async fn send_back(server: &Server, connection: &Connection) {
    while let Ok(datagram) = connection.read_datagram().await {
        server.pulse.datagrams.fetch_add(1, Ordering::Relaxed);
        let id = datagram.get(..8).map_or(0, |id| {
            id.iter().fold(0, |n, byte| n << 8 | u64::from(*byte))
        });
        let checked = Check::of(id).take(datagram.get(8..).unwrap_or_default());
        if let Err(what) = checked {
            fail(&format!("datagram, received: {what}"));
        }
        let _ = connection.send_datagram(datagram);
    }
}

async fn head(recv: &mut RecvStream) -> Result<Head, Trouble> {
    let mut bytes = [0; Head::LEN];
    recv.read_exact(&mut bytes).await?;
    Head::decode(bytes).map_err(Trouble::Wrong)
}

async fn upload(server: &Server, mut recv: RecvStream) -> Result<(), Trouble> {
    let head = head(&mut recv).await?;
    let mut check = Check::of(head.id);
    while let Some(chunk) = recv.read_chunk(CHUNK).await? {
        check.take(&chunk).map_err(Trouble::Wrong)?;
        server
            .pulse
            .bytes
            .fetch_add(chunk.len() as u64, Ordering::Relaxed);
    }
    if check.offset != head.len {
        let (came, len) = (check.offset, head.len);
        return Err(Trouble::Wrong(format!("an end at {came} of {len} bytes")));
    }
    let mut uploads = server
        .uploads
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    uploads.add(head.id);
    Ok(())
}

async fn answer(
    server: &Arc<Server>,
    connection: &Connection,
    mut send: SendStream,
    mut recv: RecvStream,
) -> Result<(), Trouble> {
    let head = head(&mut recv).await?;
    server.pulse.requests.fetch_add(1, Ordering::Relaxed);
    if head.kind != Kind::Echo && recv.read_chunk(CHUNK).await?.is_some() {
        // Read to the end: if it were dropped earlier, the stream would be stopped, perhaps before
        // the client finished it.
        return Err(Trouble::Wrong("a request with data behind it".to_owned()));
    }
    match head.kind {
        Kind::Get => download(server, head, send).await?,
        Kind::Broken => {
            let pulse = Arc::clone(server);
            let task = connection.spawn(async move { download(&pulse, head, send).await });
            tokio::time::sleep(Duration::from_millis(mix(head.id) % 200)).await;
            task.abort();
            // Cancelled, already done, or the connection ended.
            let _ = task.await;
        }
        Kind::Echo => {
            let mut check = Check::of(head.id);
            while let Some(chunk) = recv.read_chunk(CHUNK).await? {
                check.take(&chunk).map_err(Trouble::Wrong)?;
                send.write_chunk(chunk).await?;
            }
            server.pulse.bytes.fetch_add(head.len, Ordering::Relaxed);
            send.finish()?;
        }
        Kind::Ask => {
            let known = {
                let uploads = server.uploads.lock();
                let uploads = uploads.unwrap_or_else(PoisonError::into_inner);
                uploads.whole.contains(&head.id)
            };
            send.write_all(&[u8::from(known)]).await?;
            send.finish()?;
        }
        Kind::Put => {
            return Err(Trouble::Wrong("an upload in both directions".to_owned()));
        }
    }
    Ok(())
}

async fn download(server: &Server, head: Head, mut send: SendStream) -> Result<(), Trouble> {
    let mut offset = 0;
    while offset < head.len {
        let len = (head.len - offset).min(CHUNK as u64);
        send.write_chunk(content(head.id, offset, len as usize))
            .await?;
        offset += len;
        server.pulse.bytes.fetch_add(len, Ordering::Relaxed);
    }
    send.finish()?;
    Ok(())
}
