//! The client's process: lanes of work that each loop until the end, on their own connections.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use squall::rustls::RootCertStore;
use squall::rustls::pki_types::CertificateDer;
use squall::{
    Builder, Bytes, ClientConfig, Connection, Endpoint, RecvStream, SendStream, TransportConfig,
};
use tokio::time::sleep;

use crate::content::{Check, Head, Kind, Random, content, mix};
use crate::faults::{PORT, SERVER};
use crate::pulse::{Moving, Pulse, Trouble, fail};

/// Both ends name the protocol that they speak (RFC 7301).
pub(crate) const ALPN: &[u8] = b"soak";
/// Bytes written and read at a time.
pub(crate) const CHUNK: usize = 64 << 10;

/// Send buffer of the sockets, in bytes.
pub(crate) const SEND_BUFFER: usize = 128 << 10;

/// Both ends' settings: windows for a fast link, and no more than 10 seconds of silence.
pub(crate) fn transport() -> TransportConfig {
    TransportConfig::default().max_idle_timeout(Duration::from_secs(10))
}

/// What all lanes share.
struct Client {
    pulse: Arc<Pulse>,
    endpoint: Endpoint,
    config: ClientConfig,
    next: AtomicU64,
    seed: u64,
}

/// A connection, and the calm period in which it began.
struct Link {
    connection: Connection,
    since: Option<u64>,
}

pub(crate) fn run(certificate: &str, seed: u64) -> ExitCode {
    // Two threads: lanes run in parallel, as in an application, and in parallel with the endpoint's
    // workers.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    let loaded = runtime
        .map_err(Trouble::from)
        .and_then(|runtime| runtime.block_on(load(certificate, seed)));
    if let Err(trouble) = loaded {
        fail(&format!("the client: {trouble:?}"));
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

async fn load(certificate: &str, seed: u64) -> Result<(), Trouble> {
    let (pairs, _) = certificate.as_bytes().as_chunks::<2>();
    let digit = |byte: u8| char::from(byte).to_digit(16).unwrap_or_default() as u8;
    let certificate: Vec<u8> = pairs
        .iter()
        .map(|[a, b]| digit(*a) << 4 | digit(*b))
        .collect();
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from(certificate))?;
    let config = ClientConfig::new(squall::client_tls(roots, &[ALPN])?).transport(transport());
    let endpoint = bind(&config)?;
    let client = Arc::new(Client {
        pulse: Arc::default(),
        endpoint: endpoint.clone(),
        config,
        next: AtomicU64::new(1),
        seed,
    });
    let mut lanes = tokio::task::JoinSet::new();
    macro_rules! lane {
        ($count:literal, $name:ident) => {
            for _ in 0..$count {
                let client = Arc::clone(&client);
                lanes.spawn(async move {
                    loop {
                        let mut random = Random(client.id());
                        $name(&client, &mut random).await;
                        sleep(Duration::from_millis(random.within(200, 2_000))).await;
                    }
                });
            }
        };
    }
    lane!(2, steady);
    lane!(2, upload);
    lane!(2, download);
    lane!(1, both_ways);
    lane!(2, requests);
    lane!(1, datagrams);
    lane!(1, slow_reader);
    lane!(4, leave);
    lane!(2, give_up_streams);
    lane!(1, give_up_connecting);
    lane!(1, own_endpoint);
    client.pulse.beat(&endpoint).await;
    lanes.shutdown().await;
    endpoint.close(0, b"the soak is over");
    endpoint.wait_idle().await;
    println!("left connections={}", endpoint.stats().connections);
    Ok(())
}

fn bind(config: &ClientConfig) -> std::io::Result<Endpoint> {
    let builder = Builder::new(([0, 0, 0, 0], 0).into())
        .client(config.clone())
        .send_buffer(SEND_BUFFER);
    builder.bind()
}

impl Client {
    /// A number that is used only once.
    fn id(&self) -> u64 {
        mix(self.seed ^ self.next.fetch_add(1, Ordering::Relaxed) << 20)
    }

    async fn connect(&self, endpoint: &Endpoint) -> Result<Link, (Option<u64>, Trouble)> {
        let moving = self.pulse.begin("connecting");
        let since = self.pulse.calm();
        let address = format!("{SERVER}:{PORT}");
        let connected = async {
            let address = address.parse()?;
            Ok(endpoint.connect(address, "localhost")?.await?)
        };
        let connection = connected
            .await
            .map_err(|trouble: Trouble| (since, trouble))?;
        drop(moving);
        self.pulse.connections_made.fetch_add(1, Ordering::Relaxed);
        Ok(Link { connection, since })
    }

    /// Connects, works, closes; reports what went wrong, or returns the result.
    async fn on_a_connection<F, T>(
        &self,
        name: &str,
        work: impl FnOnce(Connection) -> F,
    ) -> Option<T>
    where
        F: Future<Output = Result<T, Trouble>>,
    {
        let link = match self.connect(&self.endpoint).await {
            Ok(link) => link,
            Err((since, trouble)) => {
                self.pulse.error("connecting", since, trouble);
                return None;
            }
        };
        let done = work(link.connection.clone()).await;
        link.connection.close(0, b"done");
        done.map_err(|trouble| self.pulse.error(name, link.since, trouble))
            .ok()
    }

    /// Writes a head and what it promises.
    async fn write(
        &self,
        moving: &Moving,
        send: &mut SendStream,
        head: Head,
    ) -> Result<(), Trouble> {
        send.write_all(&head.encode()).await?;
        let has_content = matches!(head.kind, Kind::Put | Kind::Echo);
        let mut offset = 0;
        while has_content && offset < head.len {
            let len = (head.len - offset).min(CHUNK as u64);
            let chunk = content(head.id, offset, len as usize);
            send.write_chunk(chunk).await?;
            offset += len;
            moving.on();
        }
        send.finish()?;
        moving.on();
        Ok(())
    }

    /// Reads to the end, which must give `len` bytes of content `id`; pauses after each chunk.
    async fn read(
        &self,
        moving: &Moving,
        recv: &mut RecvStream,
        head: Head,
        pause: Duration,
    ) -> Result<(), Trouble> {
        let mut check = Check::of(head.id);
        while let Some(chunk) = recv.read_chunk(CHUNK).await? {
            moving.on();
            check.take(&chunk).map_err(Trouble::Wrong)?;
            self.pulse
                .bytes
                .fetch_add(chunk.len() as u64, Ordering::Relaxed);
            if !pause.is_zero() {
                sleep(pause).await;
                moving.on();
            }
        }
        if check.offset != head.len {
            let (came, len) = (check.offset, head.len);
            return Err(Trouble::Wrong(format!("an end at {came} of {len} bytes")));
        }
        Ok(())
    }

    async fn get(
        &self,
        name: &'static str,
        connection: &Connection,
        len: u64,
        pause: Duration,
    ) -> Result<(), Trouble> {
        let moving = self.pulse.begin(name);
        let head = self.head(Kind::Get, len);
        let (mut send, mut recv) = connection.open_bi().await?;
        self.write(&moving, &mut send, head).await?;
        self.read(&moving, &mut recv, head, pause).await
    }

    async fn echo(
        &self,
        name: &'static str,
        connection: &Connection,
        len: u64,
    ) -> Result<(), Trouble> {
        let moving = self.pulse.begin(name);
        let head = self.head(Kind::Echo, len);
        let (mut send, mut recv) = connection.open_bi().await?;
        let sent = self.write(&moving, &mut send, head);
        let read = self.read(&moving, &mut recv, head, Duration::ZERO);
        tokio::try_join!(sent, read)?;
        self.pulse.requests.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn head(&self, kind: Kind, len: u64) -> Head {
        let id = self.id();
        Head { kind, id, len }
    }

    /// Asks until the server has read all of an upload: acknowledged data may wait to be read, but
    /// not for long.
    async fn find(&self, id: u64) {
        let _moving = self
            .pulse
            .begin("an acknowledged upload, at the server's application,");
        loop {
            if let Ok(link) = self.connect(&self.endpoint).await {
                while let Ok(known) = ask(&link.connection, id).await {
                    if known {
                        return link.connection.close(0, b"done");
                    }
                    sleep(Duration::from_millis(200)).await;
                }
            }
            sleep(Duration::from_millis(200)).await;
        }
    }
}

async fn ask(connection: &Connection, id: u64) -> Result<bool, Trouble> {
    let head = Head {
        kind: Kind::Ask,
        id,
        len: 0,
    };
    let (mut send, mut recv) = connection.open_bi().await?;
    send.write_all(&head.encode()).await?;
    send.finish()?;
    Ok(recv.read_to_end(1).await? == [1])
}

/// A small request every 50 ms, for as long as the connection lives.
async fn steady(client: &Client, random: &mut Random) {
    let work = |connection: Connection| async move {
        loop {
            let len = random.within(1, 4_000);
            client
                .echo("a steady connection's request", &connection, len)
                .await?;
            sleep(Duration::from_millis(50)).await;
        }
    };
    client.on_a_connection::<_, ()>("steady", work).await;
}

/// Megabytes to the server; once they are acknowledged, the connection may end.
async fn upload(client: &Client, random: &mut Random) {
    let head = client.head(Kind::Put, random.within(1, 6_000_000));
    let work = |connection: Connection| async move {
        let moving = client.pulse.begin("an upload");
        let mut send = connection.open_uni().await?;
        client.write(&moving, &mut send, head).await?;
        Ok(send.stopped().await?)
    };
    if let Some(None) = client.on_a_connection("upload", work).await {
        client.find(head.id).await;
    }
}

async fn download(client: &Client, random: &mut Random) {
    let len = random.within(1, 6_000_000);
    let work = |connection: Connection| async move {
        client
            .get("a download", &connection, len, Duration::ZERO)
            .await
    };
    client.on_a_connection("download", work).await;
}

/// Megabytes in both directions at once, on a few streams.
async fn both_ways(client: &Client, random: &mut Random) {
    let lens = [0; 3].map(|_: u64| random.within(1, 2_000_000));
    let work = |connection: Connection| async move {
        let [a, b, c] = lens.map(|len| client.echo("data both ways", &connection, len));
        tokio::try_join!(a, b, c)?;
        Ok(())
    };
    client.on_a_connection("both ways", work).await;
}

/// Many small requests at once.
async fn requests(client: &Client, random: &mut Random) {
    let rounds = random.within(1, 20);
    let work = |connection: Connection| async move {
        for _ in 0..rounds {
            let lens = [0; 8].map(|_: u64| random.within(0, 3_000));
            let [a, b, c, d, e, f, g, h] =
                lens.map(|len| client.echo("a request", &connection, len));
            tokio::try_join!(a, b, c, d, e, f, g, h)?;
            sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    };
    client.on_a_connection("requests", work).await;
}

/// Datagrams, which may be lost, but never come back with other content.
async fn datagrams(client: &Client, random: &mut Random) {
    let work = |connection: Connection| async move {
        let sending = async {
            for _ in 0..1_000 {
                let id = random.next();
                let len = random.within(0, 1_100) as usize;
                let datagram = [&id.to_be_bytes()[..], &content(id, 0, len)].concat();
                // It does not matter if it is too large at the moment.
                let _ = connection.send_datagram(Bytes::from(datagram));
                sleep(Duration::from_millis(2)).await;
            }
            sleep(Duration::from_millis(100)).await;
        };
        let receiving = async {
            loop {
                let datagram = connection.read_datagram().await?;
                let (id, bytes) = datagram.split_first_chunk().unwrap_or((&[0; 8], &[]));
                let checked = Check::of(u64::from_be_bytes(*id)).take(bytes);
                checked.map_err(Trouble::Wrong)?;
                client.pulse.datagrams.fetch_add(1, Ordering::Relaxed);
            }
        };
        tokio::select! {
            received = receiving => received,
            () = sending => Ok(()),
        }
    };
    client.on_a_connection("datagrams", work).await;
}

/// Reads so slowly that the server waits for credit most of the time.
async fn slow_reader(client: &Client, random: &mut Random) {
    let len = random.within(1_000_000, 4_000_000);
    let work = |connection: Connection| async move {
        let pause = Duration::from_millis(100);
        client.get("a slow download", &connection, len, pause).await
    };
    client.on_a_connection("slow download", work).await;
}

/// Leaves in the middle of transfers: by closing, by dropping everything, or by aborting tasks.
async fn leave(client: &Arc<Client>, random: &mut Random) {
    let Ok(link) = client.connect(&client.endpoint).await else {
        return;
    };
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..random.within(1, 5) {
        let (client, connection) = (Arc::clone(client), link.connection.clone());
        let len = random.within(1, 5_000_000);
        tasks.spawn(async move {
            let done = match n % 2 {
                0 => {
                    client
                        .get("a download that is left", &connection, len, Duration::ZERO)
                        .await
                }
                _ => client.echo("an echo that is left", &connection, len).await,
            };
            if let Err(trouble @ Trouble::Wrong(_)) = done {
                client.pulse.error("leaving", None, trouble);
            }
        });
    }
    sleep(Duration::from_millis(random.within(0, 400))).await;
    match random.next() % 3 {
        0 => link.connection.close(9, b"in the middle"),
        1 => drop(link),
        _ => tasks.abort_all(),
    }
    tasks.shutdown().await;
}

/// Streams that are reset, stopped, dropped, or whose handler at the server is aborted, on a
/// connection that continues.
async fn give_up_streams(client: &Client, random: &mut Random) {
    let work = |connection: Connection| async move {
        for _ in 0..random.within(1, 20) {
            let moving = client.pulse.begin("a stream that is given up");
            let way = random.next() % 5;
            let kind = if way == 0 { Kind::Broken } else { Kind::Echo };
            let head = client.head(kind, random.within(1, 5_000_000));
            let (mut send, mut recv) = connection.open_bi().await?;
            let until = sleep(Duration::from_millis(random.within(0, 50)));
            let sent = client.write(&moving, &mut send, head);
            tokio::select! {
                sent = sent => sent?,
                () = until => {}
            }
            match way {
                0 => broken(&moving, &mut recv, head).await?,
                // It does not matter if everything was delivered before.
                1 => drop(send.reset(7)),
                2 => drop(send.reset_at(7, Head::LEN as u64)),
                3 => drop(recv.stop(7)),
                _ => {}
            }
        }
        // None of this has lasting effects: a request is served as usual.
        client
            .echo(
                "a request after streams that were given up",
                &connection,
                1_000,
            )
            .await
    };
    client.on_a_connection("streams given up", work).await;
}

/// The result of an aborted handler: a part of the content, then a reset; or all of it.
async fn broken(moving: &Moving, recv: &mut RecvStream, head: Head) -> Result<(), Trouble> {
    let mut check = Check::of(head.id);
    loop {
        moving.on();
        match recv.read_chunk(CHUNK).await {
            Ok(Some(chunk)) => check.take(&chunk).map_err(Trouble::Wrong)?,
            Ok(None) if check.offset == head.len => return Ok(()),
            Ok(None) => {
                let what = "an aborted handler's stream looks whole".to_owned();
                return Err(Trouble::Wrong(what));
            }
            Err(squall::ReadError::Reset(_)) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Begins to connect, then gives up.
async fn give_up_connecting(client: &Client, random: &mut Random) {
    let address = (SERVER, PORT);
    let Ok(address) = format!("{}:{}", address.0, address.1).parse() else {
        return;
    };
    if let Ok(connecting) = client.endpoint.connect(address, "localhost") {
        let patience = Duration::from_micros(random.within(0, 4_000));
        let _ = tokio::time::timeout(patience, connecting.into_future()).await;
    }
}

/// An endpoint for one connection, which leaves no descriptor and no thread behind.
async fn own_endpoint(client: &Client, random: &mut Random) {
    let endpoint = match bind(&client.config) {
        Ok(endpoint) => endpoint,
        Err(error) => {
            let trouble = Trouble::from(error);
            return client.pulse.error("binding", client.pulse.calm(), trouble);
        }
    };
    match client.connect(&endpoint).await {
        Ok(link) => {
            let len = random.within(1, 100_000);
            let echoed = client
                .echo("a request of an endpoint's own", &link.connection, len)
                .await;
            if let Err(trouble) = echoed {
                client.pulse.error("own endpoint", link.since, trouble);
            }
        }
        Err((since, trouble)) => client.pulse.error("connecting", since, trouble),
    }
    let ends = endpoint.stats().worker_ends;
    client.pulse.worker_ends.fetch_add(ends, Ordering::Relaxed);
    if random.next().is_multiple_of(2) {
        endpoint.close(0, b"done");
        let _moving = client.pulse.begin("closing an endpoint");
        endpoint.wait_idle().await;
    }
}
