//! TLS 1.3 over TCP: the control that QUIC must be compared with, since it protects its bytes too.
//!
//! ```text
//!   handshake     rustls' unbuffered connection, records over the blocking socket
//!   send          256 KiB = 16 records of 16 KiB, sealed one after the other, one writev
//!   receive       one read of up to 16 records, each opened in place, handed over where it lies
//! ```
//! After the handshake, the record layer runs on rustls' own record ciphers (`MessageEncrypter`,
//! `MessageDecrypter`) with the keys that rustls gives to kernel TLS. rustls' unbuffered interface
//! does the same with one more copy of every byte at each end, so this is the harder control.

use std::io::{self, IoSlice, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rustls::client::UnbufferedClientConnection;
use rustls::crypto::CryptoProvider;
use rustls::crypto::cipher::{
    AeadKey, InboundOpaqueMessage, Iv, MessageDecrypter, MessageEncrypter, OutboundChunks,
    OutboundPlainMessage,
};
use rustls::kernel::KernelConnection;
use rustls::pki_types::ServerName;
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{ConnectionState, UnbufferedStatus};
use rustls::{
    ClientConfig, ConnectionTrafficSecrets, ContentType, ExtractedSecrets, ProtocolVersion,
    ServerConfig, SupportedCipherSuite, Tls13CipherSuite,
};

use super::channel::{BATCH, Channel, Protocol, prepare, prepare_receiver};
use crate::certificate::{Certificate, NAME};
use crate::error::{Failure, Result, context};
use crate::suites::{Suite, Suites};
use crate::sys;

/// RFC 8446 §5.1: the most plaintext a record carries.
const RECORD: usize = 16_384;
/// RFC 8446 §5.1: type, legacy version and length before every record.
const HEADER: usize = 5;
/// RFC 8446 §5.2: the maximum length of a protected record, without its header.
const MAX_PROTECTED: usize = RECORD + 256;
/// The size of one of our full batches on the wire: header, inner content type and tag a record.
const WIRE_BATCH: usize = BATCH / RECORD * (HEADER + RECORD + 1 + 16);
/// RFC 8446 §4: HandshakeType key_update.
const KEY_UPDATE: u8 = 24;
/// RFC 8446 §4: HandshakeType new_session_ticket.
const NEW_SESSION_TICKET: u8 = 4;

const _: () = assert!(BATCH.is_multiple_of(RECORD) && WIRE_BATCH > HEADER + MAX_PROTECTED);

/// TLS 1.3 over TCP with one provider's ciphers.
pub struct Tls {
    server: Arc<ServerConfig>,
    /// One suite each; connections take them in turn.
    clients: Vec<Arc<ClientConfig>>,
    next: AtomicUsize,
}

impl Tls {
    /// The two configurations, of one cipher suite only.
    pub fn new(provider: CryptoProvider, suite: Suite, certificate: &Certificate) -> Result<Self> {
        Self::mixed(provider, &suite.into(), 1, certificate)
    }

    /// The server's configuration with all the suites, and the clients' configurations, which
    /// connections take in turn according to each suite's share of `connections`.
    pub fn mixed(
        provider: CryptoProvider,
        suites: &Suites,
        connections: usize,
        certificate: &Certificate,
    ) -> Result<Self> {
        let mut each = Vec::new();
        for suite in suites.named() {
            let alone = suite.alone(provider.clone());
            if alone.cipher_suites.is_empty() {
                let name = suite.name();
                return Err(Failure::new(format!("this TLS provider has no {name}")));
            }
            let mut client = certificate.client(alone)?;
            client.enable_secret_extraction = true;
            each.push((suite, Arc::new(client)));
        }
        let order = suites.order(connections)?.into_iter();
        let own = |wanted| each.iter().find(|(suite, _)| *suite == wanted);
        let clients = order.filter_map(own).map(|(_, client)| Arc::clone(client));
        let provider = suites.alone(provider);
        let mut server = certificate.server(provider)?;
        // Tickets would only be bytes that the other contenders do not send.
        server.send_tls13_tickets = 0;
        server.enable_secret_extraction = true;
        Ok(Self {
            server: Arc::new(server),
            clients: clients.collect(),
            next: AtomicUsize::new(0),
        })
    }

    fn accept<S: Read + Write>(&self, mut socket: S) -> io::Result<TlsChannel<S>> {
        let mut connection =
            UnbufferedServerConnection::new(Arc::clone(&self.server)).map_err(io::Error::other)?;
        let rest = handshake(&mut connection, &mut socket)?;
        let suite = of_tls13(connection.negotiated_cipher_suite())?;
        let (secrets, keys) = connection
            .dangerous_into_kernel_connection()
            .map_err(io::Error::other)?;
        TlsChannel::new(socket, suite, secrets, Box::new(keys), rest)
    }

    fn connect<S: Read + Write>(&self, mut socket: S) -> io::Result<TlsChannel<S>> {
        let name = ServerName::try_from(NAME).map_err(io::Error::other)?;
        let at = self.next.fetch_add(1, Ordering::Relaxed) % self.clients.len();
        let mut connection = UnbufferedClientConnection::new(Arc::clone(&self.clients[at]), name)
            .map_err(io::Error::other)?;
        let rest = handshake(&mut connection, &mut socket)?;
        let suite = of_tls13(connection.negotiated_cipher_suite())?;
        let (secrets, keys) = connection
            .dangerous_into_kernel_connection()
            .map_err(io::Error::other)?;
        TlsChannel::new(socket, suite, secrets, Box::new(keys), rest)
    }
}

/// The suite of a connection.
fn of_tls13(suite: Option<SupportedCipherSuite>) -> io::Result<&'static Tls13CipherSuite> {
    match suite {
        Some(SupportedCipherSuite::Tls13(suite)) => Ok(suite),
        _ => Err(io::Error::other("no cipher suite of TLS 1.3")),
    }
}

impl Protocol for Tls {
    const NAME: &'static str = "tls_tcp";
    type Channel = TlsChannel<TcpStream>;

    fn server(&self, socket: TcpStream) -> io::Result<Self::Channel> {
        prepare(&socket)?;
        self.accept(socket)
    }

    fn client(&self, socket: TcpStream) -> io::Result<Self::Channel> {
        prepare(&socket)?;
        self.connect(socket)
    }
}

/// The two roles of rustls' unbuffered connection, whose processing functions share no trait.
trait Handshake {
    type Data;
    fn process<'c, 'i>(
        &'c mut self,
        incoming: &'i mut [u8],
    ) -> UnbufferedStatus<'c, 'i, Self::Data>;
    fn is_handshaking(&self) -> bool;
}

macro_rules! handshake {
    ($connection:ty, $data:ty) => {
        impl Handshake for $connection {
            type Data = $data;

            fn process<'c, 'i>(
                &'c mut self,
                incoming: &'i mut [u8],
            ) -> UnbufferedStatus<'c, 'i, $data> {
                self.process_tls_records(incoming)
            }

            fn is_handshaking(&self) -> bool {
                use std::ops::Deref;
                self.deref().is_handshaking()
            }
        }
    };
}
handshake!(
    UnbufferedClientConnection,
    rustls::client::ClientConnectionData
);
handshake!(
    UnbufferedServerConnection,
    rustls::server::ServerConnectionData
);

/// What a peer sent in the same segments as the end of its handshake.
#[derive(Default)]
struct Rest {
    /// Already opened by rustls.
    plaintext: Vec<u8>,
    /// Still sealed.
    records: Vec<u8>,
}

/// Drives a handshake to its end.
fn handshake<C: Handshake, S: Read + Write>(
    connection: &mut C,
    socket: &mut S,
) -> io::Result<Rest> {
    let mut incoming = Vec::new();
    let mut outgoing = Vec::new();
    let mut plaintext = Vec::new();
    loop {
        let UnbufferedStatus { mut discard, state } = connection.process(&mut incoming);
        let mut blocked = false;
        let mut writable = false;
        match state.map_err(io::Error::other)? {
            ConnectionState::EncodeTlsData(mut data) => {
                let at = outgoing.len();
                outgoing.resize(at + HEADER + MAX_PROTECTED, 0);
                let len = data
                    .encode(&mut outgoing[at..])
                    .map_err(|error| io::Error::other(error.to_string()))?;
                outgoing.truncate(at + len);
            }
            ConnectionState::TransmitTlsData(data) => {
                socket.write_all(&outgoing)?;
                outgoing.clear();
                data.done();
            }
            ConnectionState::BlockedHandshake => blocked = true,
            ConnectionState::WriteTraffic(_) => writable = true,
            ConnectionState::ReadTraffic(mut traffic) => {
                while let Some(record) = traffic.next_record() {
                    let record = record.map_err(io::Error::other)?;
                    plaintext.extend_from_slice(record.payload);
                    discard += record.discard;
                }
            }
            _ => return Err(io::Error::other("closed during the handshake")),
        }
        incoming.drain(..discard);
        if writable {
            // A server may write before it has the client's Finished; this one waits for it.
            if !connection.is_handshaking() {
                return Ok(Rest {
                    plaintext,
                    records: incoming,
                });
            }
            blocked = true;
        }
        if blocked {
            let at = incoming.len();
            incoming.resize(at + RECORD, 0);
            let count = socket.read(&mut incoming[at..])?;
            incoming.truncate(at + count);
            if count == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }
}

/// The key schedule after the handshake, for key updates.
trait KeySchedule: Send {
    fn next_send(&mut self) -> std::result::Result<(u64, ConnectionTrafficSecrets), rustls::Error>;
    fn next_receive(
        &mut self,
    ) -> std::result::Result<(u64, ConnectionTrafficSecrets), rustls::Error>;
}

impl<Data: Send> KeySchedule for KernelConnection<Data> {
    fn next_send(&mut self) -> std::result::Result<(u64, ConnectionTrafficSecrets), rustls::Error> {
        self.update_tx_secret()
    }

    fn next_receive(
        &mut self,
    ) -> std::result::Result<(u64, ConnectionTrafficSecrets), rustls::Error> {
        self.update_rx_secret()
    }
}

/// One end of a TLS connection after its handshake.
pub struct TlsChannel<S> {
    socket: S,
    suite: &'static Tls13CipherSuite,
    keys: Box<dyn KeySchedule>,
    sealer: Sealer,
    opener: Opener,
    /// Sealed records on their way to the socket.
    records: Vec<Vec<u8>>,
    /// Opened during the handshake.
    early: Vec<u8>,
    /// Received bytes, not opened yet: `buffer[..filled]`.
    buffer: Vec<u8>,
    filled: usize,
    closed: bool,
}

impl<S: Read + Write> TlsChannel<S> {
    fn new(
        socket: S,
        suite: &'static Tls13CipherSuite,
        secrets: ExtractedSecrets,
        keys: Box<dyn KeySchedule>,
        rest: Rest,
    ) -> io::Result<Self> {
        let filled = rest.records.len();
        let mut buffer = rest.records;
        buffer.resize(buffer.len().max(WIRE_BATCH), 0);
        Ok(Self {
            socket,
            suite,
            keys,
            sealer: Sealer::new(suite, secrets.tx)?,
            opener: Opener::new(suite, secrets.rx)?,
            records: Vec::with_capacity(BATCH / RECORD + 1),
            early: rest.plaintext,
            buffer,
            filled,
            closed: false,
        })
    }

    /// Seals one more record, after a key update if the key has reached its limit.
    fn push(&mut self, typ: ContentType, plaintext: &[u8]) -> io::Result<()> {
        if self.sealer.sequence >= self.suite.common.confidentiality_limit {
            // RFC 8446 §4.6.3: update_not_requested, the last record under the old key.
            let update = self
                .sealer
                .seal(ContentType::Handshake, &[KEY_UPDATE, 0, 0, 1, 0])?;
            self.records.push(update);
            let next = self.keys.next_send().map_err(io::Error::other)?;
            self.sealer = Sealer::new(self.suite, next)?;
        }
        let record = self.sealer.seal(typ, plaintext)?;
        self.records.push(record);
        Ok(())
    }

    /// Writes the sealed records, in one call unless the kernel takes only a part.
    fn flush(&mut self) -> io::Result<()> {
        let mut slices: Vec<IoSlice<'_>> = self
            .records
            .iter()
            .map(|record| IoSlice::new(record))
            .collect();
        let mut slices = slices.as_mut_slice();
        while !slices.is_empty() {
            match self.socket.write_vectored(slices) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => IoSlice::advance_slices(&mut slices, count),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.records.clear();
        Ok(())
    }

    /// Opens every whole record in the buffer and moves the rest to its front.
    fn open_all(&mut self, sink: &mut dyn FnMut(&[u8])) -> io::Result<usize> {
        let mut at = 0;
        let mut total = 0;
        while let Some(len) = record_len(&self.buffer[at..self.filled])? {
            let record = &mut self.buffer[at..at + len];
            at += len;
            let (typ, plaintext) = self.opener.open(record)?;
            match typ {
                ContentType::ApplicationData => {
                    sink(plaintext);
                    total += plaintext.len();
                }
                // RFC 8446 §6.1: close_notify; any other alert is an error.
                ContentType::Alert if plaintext == [1, 0] => self.closed = true,
                ContentType::Handshake if plaintext == [KEY_UPDATE, 0, 0, 1, 0] => {
                    let next = self.keys.next_receive().map_err(io::Error::other)?;
                    self.opener = Opener::new(self.suite, next)?;
                }
                ContentType::Handshake if plaintext.first() == Some(&NEW_SESSION_TICKET) => {}
                _ => return Err(io::Error::other("unexpected TLS record")),
            }
        }
        self.buffer.copy_within(at..self.filled, 0);
        self.filled -= at;
        Ok(total)
    }
}

impl<S: Read + Write> TlsChannel<S> {
    fn send_batch(&mut self, data: &[u8]) -> io::Result<()> {
        for plaintext in data.chunks(RECORD) {
            self.push(ContentType::ApplicationData, plaintext)?;
        }
        self.flush()
    }

    fn receive_batch(&mut self, sink: &mut dyn FnMut(&[u8])) -> io::Result<Option<usize>> {
        if !self.early.is_empty() {
            let early = std::mem::take(&mut self.early);
            sink(&early);
            return Ok(Some(early.len()));
        }
        if self.closed {
            return Ok(None);
        }
        if record_len(&self.buffer[..self.filled])?.is_none() {
            // Reading exactly to the end of a batch keeps reads and records aligned, so a partial
            // record seldom has to be moved.
            let count = self.socket.read(&mut self.buffer[self.filled..])?;
            if count == 0 {
                // RFC 8446 §6.1: an end without close_notify may be an attack.
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.filled += count;
        }
        self.open_all(sink).map(Some)
    }
}

impl Channel for TlsChannel<TcpStream> {
    fn send(&mut self, data: &[u8]) -> io::Result<()> {
        self.send_batch(data)
    }

    fn receive(&mut self, sink: &mut dyn FnMut(&[u8])) -> io::Result<Option<usize>> {
        self.receive_batch(sink)
    }

    fn prepare_to_receive(&self) -> io::Result<()> {
        prepare_receiver(&self.socket)
    }

    fn finish(&mut self) -> io::Result<()> {
        self.push(ContentType::Alert, &[1, 0])?;
        self.flush()?;
        self.socket.shutdown(Shutdown::Write)
    }
}

/// The length of the whole record at the front, header included; `None` while a part is missing.
fn record_len(bytes: &[u8]) -> io::Result<Option<usize>> {
    let Some(header) = bytes.first_chunk::<HEADER>() else {
        return Ok(None);
    };
    let len = usize::from(u16::from_be_bytes([header[3], header[4]]));
    if len > MAX_PROTECTED {
        return Err(io::Error::other("TLS record too long"));
    }
    let len = HEADER + len;
    Ok((bytes.len() >= len).then_some(len))
}

/// A key and its initialization vector, for any suite.
fn key_and_iv(secrets: ConnectionTrafficSecrets) -> io::Result<(AeadKey, Iv)> {
    match secrets {
        ConnectionTrafficSecrets::Aes128Gcm { key, iv }
        | ConnectionTrafficSecrets::Aes256Gcm { key, iv }
        | ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => Ok((key, iv)),
        _ => Err(io::Error::other("not a cipher suite of TLS 1.3")),
    }
}

/// Seals records with one key.
struct Sealer {
    cipher: Box<dyn MessageEncrypter>,
    sequence: u64,
}

impl Sealer {
    fn new(
        suite: &Tls13CipherSuite,
        (sequence, secrets): (u64, ConnectionTrafficSecrets),
    ) -> io::Result<Self> {
        let (key, iv) = key_and_iv(secrets)?;
        Ok(Self {
            cipher: suite.aead_alg.encrypter(key, iv),
            sequence,
        })
    }

    fn seal(&mut self, typ: ContentType, plaintext: &[u8]) -> io::Result<Vec<u8>> {
        let message = OutboundPlainMessage {
            typ,
            version: ProtocolVersion::TLSv1_2,
            payload: OutboundChunks::Single(plaintext),
        };
        let sealed = self
            .cipher
            .encrypt(message, self.sequence)
            .map_err(io::Error::other)?;
        self.sequence += 1;
        Ok(sealed.encode())
    }
}

/// Opens records with one key.
struct Opener {
    cipher: Box<dyn MessageDecrypter>,
    sequence: u64,
}

impl Opener {
    fn new(
        suite: &Tls13CipherSuite,
        (sequence, secrets): (u64, ConnectionTrafficSecrets),
    ) -> io::Result<Self> {
        let (key, iv) = key_and_iv(secrets)?;
        Ok(Self {
            cipher: suite.aead_alg.decrypter(key, iv),
            sequence,
        })
    }

    fn open<'a>(&mut self, record: &'a mut [u8]) -> io::Result<(ContentType, &'a [u8])> {
        let message = InboundOpaqueMessage::new(
            ContentType::from(record[0]),
            ProtocolVersion::TLSv1_2,
            &mut record[HEADER..],
        );
        let opened = self
            .cipher
            .decrypt(message, self.sequence)
            .map_err(io::Error::other)?;
        self.sequence += 1;
        Ok((opened.typ, opened.payload))
    }
}

/// The faster of the two providers on this CPU, and how fast each is.
pub struct Choice {
    /// The name of the provider.
    pub name: &'static str,
    /// TLS with the provider.
    pub tls: Tls,
    /// Name, and nanoseconds to seal and open a record of 16 KiB.
    pub measured: Vec<(&'static str, f64)>,
}

/// Measures sealing and opening of 16 KiB records with each provider, about 40 ms each, and chooses
/// the faster one.
pub fn choose(certificate: &Certificate, suite: Suite) -> Result<Choice> {
    choose_mixed(certificate, &suite.into(), 1)
}

/// As [`choose`], for a mix of suites over `connections`: measures the one with the largest share.
pub fn choose_mixed(
    certificate: &Certificate,
    suites: &Suites,
    connections: usize,
) -> Result<Choice> {
    let mut pairs = Vec::new();
    for (name, provider) in [
        ("ring", rustls::crypto::ring::default_provider()),
        ("aws-lc-rs", rustls::crypto::aws_lc_rs::default_provider()),
    ] {
        let tls = Tls::mixed(provider.clone(), suites, connections, certificate)?;
        let ends = memory_pair(&Tls::new(provider, suites.largest(), certificate)?)?;
        pairs.push((name, tls, ends, f64::INFINITY));
    }
    // Many short turns, of which the best one counts, so that other load on the machine does not
    // decide.
    for _ in 0..TURNS {
        for (_, _, (server, client), best) in &mut pairs {
            let turn = seal_and_open(server, client).map_err(context("measuring TLS providers"))?;
            *best = best.min(turn);
        }
    }
    let measured = pairs.iter().map(|pair| (pair.0, pair.3)).collect();
    pairs
        .into_iter()
        .min_by(|a, b| a.3.total_cmp(&b.3))
        .map(|(name, tls, _, _)| Choice {
            name,
            tls,
            measured,
        })
        .ok_or_else(|| Failure::new("no TLS provider"))
}

type Ends = (TlsChannel<sys::Stream>, TlsChannel<sys::Stream>);

/// A server's and a client's end after a handshake through a socket pair.
fn memory_pair(tls: &Tls) -> Result<Ends> {
    let (near, far) = sys::stream_pair().map_err(context("cannot make a socket pair"))?;
    let (server, client) = std::thread::scope(|scope| {
        let server = scope.spawn(|| tls.accept(far));
        let client = tls.connect(near);
        (server.join(), client)
    });
    let server = server
        .map_err(|_| Failure::new("the TLS handshake panicked"))?
        .map_err(context("TLS handshake"))?;
    Ok((server, client.map_err(context("TLS handshake"))?))
}

/// Number of turns per provider, and CPU time of one.
const TURNS: usize = 40;
const TURN: Duration = Duration::from_millis(1);

/// Nanoseconds of CPU to seal and open one full record, over one turn.
fn seal_and_open<S>(server: &mut TlsChannel<S>, client: &mut TlsChannel<S>) -> io::Result<f64> {
    let plaintext = vec![0x5a; RECORD];
    let start = sys::thread_cpu();
    let mut records = 0;
    let mut spent = Duration::ZERO;
    while spent < TURN {
        for _ in 0..16 {
            let mut record = server
                .sealer
                .seal(ContentType::ApplicationData, &plaintext)?;
            client.opener.open(&mut record)?;
            records += 1;
        }
        spent = sys::thread_cpu().saturating_sub(start);
    }
    Ok(spent.as_secs_f64() * 1e9 / f64::from(records))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (TlsChannel<sys::Stream>, TlsChannel<sys::Stream>) {
        let certificate = Certificate::generate().expect("a certificate");
        let tls = Tls::new(
            rustls::crypto::ring::default_provider(),
            Suite::Aes128,
            &certificate,
        )
        .expect("ring");
        memory_pair(&tls).expect("handshake")
    }

    fn receive(channel: &mut TlsChannel<sys::Stream>, len: usize) -> Vec<u8> {
        let mut got = Vec::new();
        while got.len() < len {
            channel
                .receive_batch(&mut |bytes| got.extend_from_slice(bytes))
                .expect("readable")
                .expect("not closed");
        }
        got
    }

    #[test]
    fn data_is_received_across_a_key_update() {
        let (mut server, mut client) = pair();
        let data: Vec<u8> = (0..100_000_u32).map(|i| i as u8).collect();
        server.send_batch(&data).expect("room in the socket");
        assert_eq!(receive(&mut client, data.len()), data);
        // The key is used up: the next record goes out under a new one.
        server.sealer.sequence = server.suite.common.confidentiality_limit;
        client.opener.sequence = server.sealer.sequence;
        server.send_batch(&data).expect("room in the socket");
        assert!(server.sealer.sequence < 100);
        assert_eq!(receive(&mut client, data.len()), data);
    }

    /// A server's socket that answers its second read only when the client has sent everything.
    struct Late {
        socket: sys::Stream,
        reads: usize,
        client_is_done: std::sync::mpsc::Receiver<()>,
    }

    impl Read for Late {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            self.reads += 1;
            if self.reads == 2 {
                self.client_is_done.recv().expect("the client ends well");
            }
            self.socket.read(buffer)
        }
    }

    impl Write for Late {
        fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
            self.socket.write(buffer)
        }

        fn flush(&mut self) -> io::Result<()> {
            self.socket.flush()
        }
    }

    #[test]
    fn a_request_received_with_the_clients_finished_is_not_lost() {
        let certificate = Certificate::generate().expect("a certificate");
        let tls = Tls::new(
            rustls::crypto::ring::default_provider(),
            Suite::Aes128,
            &certificate,
        )
        .expect("ring");
        let (near, far) = sys::stream_pair().expect("sockets");
        let (done, client_is_done) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let socket = Late {
                    socket: far,
                    reads: 0,
                    client_is_done,
                };
                let mut server = tls.accept(socket).expect("handshake");
                let mut got = Vec::new();
                server
                    .receive_batch(&mut |bytes| got.extend_from_slice(bytes))
                    .expect("readable");
                assert_eq!(got, b"request!");
            });
            let mut client = tls.connect(near).expect("handshake");
            client.send_batch(b"request!").expect("sent");
            done.send(()).expect("the server waits");
        });
    }

    #[test]
    fn a_flipped_bit_is_detected() {
        let (mut server, mut client) = pair();
        let mut record = server
            .sealer
            .seal(ContentType::ApplicationData, b"hello")
            .expect("sealed");
        record[HEADER] ^= 1;
        assert!(client.opener.open(&mut record).is_err());
    }

    #[test]
    fn only_an_end_without_close_notify_is_an_error() {
        let (server, mut client) = pair();
        drop(server);
        let error = client.receive_batch(&mut |_| ()).expect_err("cut");
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);

        let (mut server, mut client) = pair();
        server
            .push(ContentType::Alert, &[1, 0])
            .and_then(|()| server.flush())
            .expect("sent");
        assert_eq!(client.receive_batch(&mut |_| ()).expect("alert"), Some(0));
        assert_eq!(client.receive_batch(&mut |_| ()).expect("closed"), None);
    }

    #[test]
    fn records_are_split_by_their_length() {
        assert_eq!(record_len(&[23, 3, 3, 0]).expect("short"), None);
        assert_eq!(record_len(&[23, 3, 3, 0, 1]).expect("short"), None);
        assert_eq!(record_len(&[23, 3, 3, 0, 1, 9, 9]).expect("whole"), Some(6));
        assert!(record_len(&[23, 3, 3, 0xff, 0xff]).is_err());
    }
}
