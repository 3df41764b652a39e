//! The requests and responses of one connection.

use std::collections::{HashMap, VecDeque};
use std::path::{Path, PathBuf};

use http::Uri;
use quiche::h3::{Event, Header, NameValue as _};

use super::Quic;
use crate::endpoint::{Outcome, files};

const PIECE: usize = 64 * 1024;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Client,
    Server,
}

/// What is left to send on a stream.
struct Outgoing {
    data: Vec<u8>,
    sent: usize,
}

/// A file that is arriving.
struct Incoming {
    target: PathBuf,
    data: Vec<u8>,
}

pub(super) struct Exchange {
    side: Side,
    is_http3: bool,
    http3: Option<quiche::h3::Connection>,
    /// Requests that wait for a stream.
    wanted: VecDeque<(Uri, PathBuf)>,
    next_stream: u64,
    outgoing: HashMap<u64, Outgoing>,
    incoming: HashMap<u64, Incoming>,
    /// Incomplete request lines.
    lines: HashMap<u64, Vec<u8>>,
    /// HTTP/3 requests whose responses do not fit into their streams yet.
    unanswered: Vec<(u64, Vec<Header>)>,
}

impl Exchange {
    pub(super) fn new(side: Side, is_http3: bool) -> Self {
        Self {
            side,
            is_http3,
            http3: None,
            wanted: VecDeque::new(),
            next_stream: 0,
            outgoing: HashMap::new(),
            incoming: HashMap::new(),
            lines: HashMap::new(),
            unanswered: Vec::new(),
        }
    }

    /// Clients: adds a file to download.
    pub(super) fn want(&mut self, url: Uri, target: PathBuf) {
        self.wanted.push_back((url, target));
    }

    /// Clients: whether all files have arrived.
    pub(super) fn is_done(&self) -> bool {
        self.wanted.is_empty() && self.incoming.is_empty()
    }

    /// Begins HTTP/3 as soon as streams may be opened.
    fn begin(&mut self, quic: &mut Quic) -> Outcome<bool> {
        if !quic.is_established() && !quic.is_in_early_data() {
            return Ok(false);
        }
        if self.is_http3 && self.http3.is_none() {
            let config = quiche::h3::Config::new()?;
            self.http3 = Some(quiche::h3::Connection::with_transport(quic, &config)?);
        }
        Ok(true)
    }

    /// Servers: answers the requests that can be answered.
    pub(super) fn serve(&mut self, quic: &mut Quic, www: &Path) -> Outcome<()> {
        if !self.begin(quic)? {
            return Ok(());
        }
        if self.is_http3 {
            while let Some((stream, event)) = self.poll(quic)? {
                if let Event::Headers { list, .. } = event {
                    self.unanswered.push((stream, list));
                }
            }
            for (stream, list) in std::mem::take(&mut self.unanswered) {
                if !self.answer_http3(quic, stream, &list, www)? {
                    self.unanswered.push((stream, list));
                }
            }
        } else {
            for stream in quic.readable() {
                self.read_line(quic, stream, www)?;
            }
        }
        self.send(quic)
    }

    fn read_line(&mut self, quic: &mut Quic, stream: u64, www: &Path) -> Outcome<()> {
        let mut piece = [0; 4096];
        let line = self.lines.entry(stream).or_default();
        let mut is_whole = false;
        loop {
            match quic.stream_recv(stream, &mut piece) {
                Ok((len, fin)) => {
                    line.extend_from_slice(&piece[..len]);
                    is_whole |= fin || line.ends_with(b"\n");
                }
                Err(quiche::Error::Done) => break,
                Err(quiche::Error::StreamReset(_)) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
        if !is_whole || self.outgoing.contains_key(&stream) || line.is_empty() {
            return Ok(());
        }
        let line = std::mem::take(line);
        match files::answer(www, &line) {
            Ok(data) => {
                self.outgoing.insert(stream, Outgoing { data, sent: 0 });
            }
            Err(error) => {
                eprintln!("{error}");
                quic.stream_shutdown(stream, quiche::Shutdown::Write, 1)?;
            }
        }
        Ok(())
    }

    /// Begins a response; returns whether its head fits into the stream.
    fn answer_http3(
        &mut self,
        quic: &mut Quic,
        stream: u64,
        list: &[Header],
        www: &Path,
    ) -> Outcome<bool> {
        let path = list.iter().find(|field| field.name() == b":path");
        let path = path.map(|field| std::str::from_utf8(field.value()));
        let file = match path {
            Some(Ok(path)) => files::read(www, path).ok(),
            _ => None,
        };
        let Some(http3) = &mut self.http3 else {
            return Ok(false);
        };
        let length = file.as_ref().map_or(0, Vec::len).to_string();
        let status = if file.is_some() { b"200" } else { b"404" };
        let head = [
            Header::new(b":status", status),
            Header::new(b"content-length", length.as_bytes()),
        ];
        let data = file.unwrap_or_default();
        match http3.send_response(quic, stream, &head, data.is_empty()) {
            Err(quiche::h3::Error::StreamBlocked) => return Ok(false),
            sent => sent?,
        }
        if !data.is_empty() {
            self.outgoing.insert(stream, Outgoing { data, sent: 0 });
        }
        Ok(true)
    }

    /// Clients: sends requests and stores what has arrived.
    pub(super) fn fetch(&mut self, quic: &mut Quic) -> Outcome<()> {
        if !self.begin(quic)? {
            return Ok(());
        }
        while quic.peer_streams_left_bidi() > 0
            && let Some((url, target)) = self.wanted.pop_front()
        {
            let stream = self.request(quic, &url)?;
            let data = Vec::new();
            self.incoming.insert(stream, Incoming { target, data });
        }
        self.send(quic)?;
        if self.is_http3 {
            while let Some((stream, event)) = self.poll(quic)? {
                self.take_http3(quic, stream, &event)?;
            }
            return Ok(());
        }
        for stream in quic.readable() {
            self.take_http09(quic, stream)?;
        }
        // An end that arrives with data already read makes no stream readable.
        let finished = self.incoming.keys().copied();
        let finished: Vec<u64> = finished.filter(|id| quic.stream_finished(*id)).collect();
        finished
            .into_iter()
            .try_for_each(|stream| self.store(stream))
    }

    fn request(&mut self, quic: &mut Quic, url: &Uri) -> Outcome<u64> {
        let Some(http3) = &mut self.http3 else {
            let stream = self.next_stream;
            self.next_stream += 4;
            let data = files::request(url).into_bytes();
            // The stream exists from now on, and counts against the peer's limit.
            let sent = match quic.stream_send(stream, &data, true) {
                Err(quiche::Error::Done) => 0,
                sent => sent?,
            };
            if sent < data.len() {
                self.outgoing.insert(stream, Outgoing { data, sent });
            }
            return Ok(stream);
        };
        let authority = url.authority().map(ToString::to_string).unwrap_or_default();
        let head = [
            Header::new(b":method", b"GET"),
            Header::new(b":scheme", b"https"),
            Header::new(b":authority", authority.as_bytes()),
            Header::new(b":path", url.path().as_bytes()),
        ];
        Ok(http3.send_request(quic, &head, true)?)
    }

    fn take_http3(&mut self, quic: &mut Quic, stream: u64, event: &Event) -> Outcome<()> {
        let (Some(http3), Some(incoming)) = (&mut self.http3, self.incoming.get_mut(&stream))
        else {
            return Ok(());
        };
        match event {
            Event::Headers { list, .. } => {
                let ok = Header::new(b":status", b"200");
                if !list.contains(&ok) {
                    return Err("the server has not answered with 200".into());
                }
            }
            Event::Data => {
                let mut piece = [0; PIECE];
                while let Ok(len) = http3.recv_body(quic, stream, &mut piece) {
                    incoming.data.extend_from_slice(&piece[..len]);
                }
            }
            Event::Finished => self.store(stream)?,
            Event::Reset(code) => return Err(format!("a stream is reset with {code}").into()),
            _ => {}
        }
        Ok(())
    }

    fn take_http09(&mut self, quic: &mut Quic, stream: u64) -> Outcome<()> {
        let mut piece = [0; PIECE];
        loop {
            match quic.stream_recv(stream, &mut piece) {
                Ok((len, fin)) => {
                    if let Some(incoming) = self.incoming.get_mut(&stream) {
                        incoming.data.extend_from_slice(&piece[..len]);
                    }
                    if fin {
                        return self.store(stream);
                    }
                }
                Err(quiche::Error::Done) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn store(&mut self, stream: u64) -> Outcome<()> {
        if let Some(incoming) = self.incoming.remove(&stream) {
            std::fs::write(incoming.target, incoming.data)?;
        }
        Ok(())
    }

    /// Sends as much as the peer and the network accept.
    fn send(&mut self, quic: &mut Quic) -> Outcome<()> {
        let streams: Vec<u64> = self.outgoing.keys().copied().collect();
        for stream in streams {
            let Some(outgoing) = self.outgoing.get_mut(&stream) else {
                continue;
            };
            let rest = &outgoing.data[outgoing.sent..];
            let result = match (&mut self.http3, self.side) {
                (Some(http3), Side::Server) => http3
                    .send_body(quic, stream, rest, true)
                    .map_err(|error| (error == quiche::h3::Error::Done, error.to_string())),
                _ => quic
                    .stream_send(stream, rest, true)
                    .map_err(|error| (error == quiche::Error::Done, error.to_string())),
            };
            match result {
                Ok(sent) => outgoing.sent += sent,
                Err((true, _)) => continue,
                Err((false, error)) => {
                    eprintln!("stream {stream}: {error}");
                    self.outgoing.remove(&stream);
                    continue;
                }
            }
            if outgoing.sent == outgoing.data.len() {
                self.outgoing.remove(&stream);
            }
        }
        Ok(())
    }

    fn poll(&mut self, quic: &mut Quic) -> Outcome<Option<(u64, Event)>> {
        let Some(http3) = &mut self.http3 else {
            return Ok(None);
        };
        match http3.poll(quic) {
            Ok(event) => Ok(Some(event)),
            Err(quiche::h3::Error::Done) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}
