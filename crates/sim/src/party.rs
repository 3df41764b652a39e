//! The application of one end: it opens, writes, reads, and compares every byte with the plan.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, Bytes};
use squall_core::{CloseReason, Connection, Event, Priority, ReadError, Time, WriteError};
use squall_wire::{Direction, Path, Side, StreamId};

use crate::datagrams::Datagrams;
use crate::plan::{CUT_CODE, Cut, Plan};

const DIRECTIONS: [Direction; 2] = [Direction::Bidirectional, Direction::Unidirectional];

/// How an application reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// Everything as soon as it arrives, at most this many bytes per call.
    AtOnce(usize),
    /// This many bytes, at this interval.
    Slowly(usize, Duration),
    /// Everything as soon as it arrives, in any order, at most this many bytes per call.
    Unordered(usize),
}

/// How an application writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writing {
    /// Everything as soon as the connection accepts it.
    AtOnce,
    /// At most this many bytes at this interval. Streams are opened at the same times.
    Slowly(usize, Duration),
}

/// The application of one end.
#[derive(Debug)]
pub struct Party {
    side: Side,
    plan: Arc<Plan>,
    reading: Reading,
    writing: Writing,
    /// Whether it has begun before the handshake.
    early: bool,
    /// Streams not yet opened, by direction.
    to_open: [usize; 2],
    /// What is still to be written.
    sending: BTreeMap<StreamId, Bytes>,
    /// What is still to be read.
    receiving: BTreeMap<StreamId, Bytes>,
    /// Which bytes of a stream were read out of order.
    taken: BTreeMap<StreamId, Taken>,
    /// Streams that a slow reader was notified of.
    readable: VecDeque<StreamId>,
    next_read: Option<Time>,
    /// Bytes that a slow writer may write before it pauses.
    budget: usize,
    /// Streams on which a slow writer paused.
    paused: Vec<StreamId>,
    next_write: Option<Time>,
    /// Streams whose end the peer has acknowledged.
    finished: usize,
    /// Streams read to their end.
    ended: usize,
    datagrams: Datagrams,
    /// Bytes taken by `write`.
    pub written: u64,
    /// Bytes read.
    pub read: u64,
    /// Whether early data was accepted, if there was any.
    pub early_data_accepted: Option<bool>,
    /// When the handshake was complete.
    pub connected: Option<Time>,
    /// How the connection ended.
    pub closed: Option<CloseReason>,
    /// When it last read a byte.
    pub last_read: Time,
    /// Validated paths that the connection moved to, and when it reported them.
    pub moves: Vec<(Time, Path)>,
    /// Paths whose validation failed.
    pub failed_moves: Vec<(Time, Path)>,
}

impl Party {
    pub(crate) fn new(side: Side, plan: &Arc<Plan>, now: Time) -> Self {
        let streams = &plan.streams[side as usize];
        let to_open = DIRECTIONS.map(|d| streams.iter().filter(|s| s.direction == d).count());
        Self {
            side,
            plan: Arc::clone(plan),
            reading: Reading::AtOnce(usize::MAX),
            writing: Writing::AtOnce,
            early: false,
            to_open,
            sending: BTreeMap::new(),
            receiving: BTreeMap::new(),
            taken: BTreeMap::new(),
            readable: VecDeque::new(),
            next_read: None,
            budget: usize::MAX,
            paused: Vec::new(),
            next_write: None,
            finished: 0,
            ended: 0,
            datagrams: Datagrams::new(plan.datagrams[side as usize], plan.newest_datagrams),
            written: 0,
            read: 0,
            early_data_accepted: None,
            connected: None,
            closed: None,
            last_read: now,
            moves: Vec::new(),
            failed_moves: Vec::new(),
        }
    }

    /// Changes how it reads.
    pub const fn set_reading(&mut self, reading: Reading) {
        self.reading = reading;
    }

    /// Changes how it writes.
    pub const fn set_writing(&mut self, writing: Writing) {
        self.writing = writing;
        self.budget = match writing {
            Writing::AtOnce => usize::MAX,
            Writing::Slowly(bytes, _) => bytes,
        };
    }

    /// Whether everything that the peer sends was read to its end.
    #[must_use]
    pub fn has_read_all(&self) -> bool {
        self.ended == self.plan.total(self.side.peer()).0
    }

    /// Whether the peer has acknowledged everything that this end sends.
    #[must_use]
    pub fn has_sent_all(&self) -> bool {
        self.finished == self.plan.total(self.side).0
    }

    /// Unreliable datagrams sent and received.
    #[must_use]
    pub fn datagrams(&self) -> (u64, u64) {
        (self.datagrams.sent(), self.datagrams.received())
    }

    /// When it wants to act without an event.
    #[must_use]
    pub fn wake(&self) -> Option<Time> {
        self.next_read.into_iter().chain(self.next_write).min()
    }

    /// Its state, in words.
    #[must_use]
    pub fn describe(&self) -> String {
        let (out_streams, out_bytes) = self.plan.total(self.side);
        let (in_streams, in_bytes) = self.plan.total(self.side.peer());
        format!(
            "{:?}: written {}/{out_bytes}, finished {}/{out_streams}, read {}/{in_bytes}, ended {}/{in_streams}, to open {:?}, writing {:?}, reading {:?}, {:?}",
            self.side,
            self.written,
            self.finished,
            self.read,
            self.ended,
            self.to_open,
            self.sending.keys(),
            self.receiving.keys(),
            self.closed
        )
    }

    pub(crate) fn on_event(
        &mut self,
        now: Time,
        connection: &mut Connection,
        event: Event,
    ) -> Result<(), String> {
        // Data that arrived before the end may be accepted and read after it.
        if let Some(reason) = &self.closed
            && !matches!(event, Event::Readable(_))
        {
            return Err(format!("{event:?} after the end: {reason}"));
        }
        match event {
            Event::Connected => {
                self.connected = Some(now);
                for direction in DIRECTIONS {
                    self.open(connection, direction)?;
                }
                self.datagrams.send(connection, self.side)?;
            }
            Event::EarlyDataAccepted => self.early_data_accepted = Some(true),
            Event::EarlyDataRejected => self.early_data_accepted = Some(false),
            Event::StreamsAvailable(direction) => self.open(connection, direction)?,
            Event::StreamOpened(direction) => {
                while let Some(id) = connection.accept(direction) {
                    self.expect(id)?;
                    if direction == Direction::Bidirectional {
                        self.begin_sending(connection, id)?;
                    }
                }
            }
            Event::Readable(id) => match self.reading {
                Reading::AtOnce(max) => {
                    while self.read(now, connection, id, max)?.is_some()
                        && self.receiving.contains_key(&id)
                    {}
                }
                Reading::Unordered(max) => while self.read_unordered(now, connection, id, max)? {},
                Reading::Slowly(..) => {
                    self.readable.push_back(id);
                    self.next_read.get_or_insert(now);
                }
            },
            Event::Writable(id) => self.write(connection, id)?,
            // Counted when it was reset.
            Event::Finished(id) if matches!(self.plan.cut(id, self.side), Cut::ResetAt(..)) => {}
            Event::Finished(id) => {
                self.finished += 1;
                if self.sending.remove(&id).is_some() {
                    return Err(format!("{id:?} is finished before all was written"));
                }
            }
            Event::Stopped(id, code) => {
                if code != CUT_CODE || !matches!(self.plan.cut(id, self.side), Cut::Stop(_)) {
                    return Err(format!("{id:?} was stopped with {code}"));
                }
                self.sending.remove(&id);
                self.finished += 1;
            }
            Event::Migrated(path) => self.moves.push((now, path)),
            Event::MigrationFailed(path) => self.failed_moves.push((now, path)),
            Event::DatagramsReadable => self.datagrams.read(connection, self.side.peer())?,
            Event::DatagramsWritable => self.datagrams.send(connection, self.side)?,
            Event::HandshakeData => {}
            Event::Closed(reason) => self.closed = Some(reason),
            other => return Err(format!("an event that no party knows: {other:?}")),
        }
        Ok(())
    }

    /// Acts without an event: a client with early data begins at once, slow readers and writers go
    /// on when their time comes. Returns whether there was anything to do.
    pub(crate) fn act(&mut self, now: Time, connection: &mut Connection) -> Result<bool, String> {
        if connection.has_early_data() && !std::mem::replace(&mut self.early, true) {
            for direction in DIRECTIONS {
                self.open(connection, direction)?;
            }
            self.datagrams.send(connection, self.side)?;
            return Ok(true);
        }
        let has_written = self.go_on_writing(now, connection)?;
        let has_read = self.go_on_reading(now, connection)?;
        Ok(has_written || has_read)
    }

    /// Writes again if it is time to; returns whether it was.
    fn go_on_writing(&mut self, now: Time, connection: &mut Connection) -> Result<bool, String> {
        let Writing::Slowly(bytes, every) = self.writing else {
            return Ok(false);
        };
        if self.budget == 0 {
            self.next_write.get_or_insert(now + every);
        }
        if self.next_write.is_none_or(|time| time > now) {
            return Ok(false);
        }
        self.next_write = None;
        self.budget = bytes;
        for id in std::mem::take(&mut self.paused) {
            if self.sending.contains_key(&id) {
                self.write(connection, id)?;
            }
        }
        for direction in DIRECTIONS {
            self.open(connection, direction)?;
        }
        Ok(true)
    }

    /// Reads again if it is time to; returns whether it was.
    fn go_on_reading(&mut self, now: Time, connection: &mut Connection) -> Result<bool, String> {
        let Reading::Slowly(bytes, every) = self.reading else {
            return Ok(false);
        };
        if self.next_read.is_none_or(|time| time > now) {
            return Ok(false);
        }
        let mut left = bytes;
        while left > 0
            && let Some(id) = self.readable.front().copied()
        {
            let taken = self.read(now, connection, id, left)?;
            left -= taken.unwrap_or(0);
            if taken.is_none() || !self.receiving.contains_key(&id) {
                self.readable.pop_front();
            }
        }
        self.next_read = (!self.readable.is_empty()).then(|| now + every);
        Ok(true)
    }

    fn open(&mut self, connection: &mut Connection, direction: Direction) -> Result<(), String> {
        let at = usize::from(direction == Direction::Unidirectional);
        while self.to_open[at] > 0
            && self.budget > 0
            && let Some(id) = connection.open(direction)
        {
            self.to_open[at] -= 1;
            if direction == Direction::Bidirectional {
                self.expect(id)?;
            }
            self.begin_sending(connection, id)?;
        }
        Ok(())
    }

    fn expect(&mut self, id: StreamId) -> Result<(), String> {
        let contents = self.plan.contents(id, self.side.peer());
        let contents = contents.ok_or_else(|| format!("{id:?} is not planned"))?;
        let known = self.receiving.insert(id, contents);
        known.map_or(Ok(()), |_| Err(format!("{id:?} was accepted twice")))
    }

    fn begin_sending(&mut self, connection: &mut Connection, id: StreamId) -> Result<(), String> {
        let contents = self.plan.contents(id, self.side);
        let contents = contents.ok_or_else(|| format!("{id:?} is not planned"))?;
        self.sending.insert(id, contents);
        if self.plan.priorities {
            let priority = Priority {
                level: (id.0 % 7) as i32 - 3,
                incremental: id.0.is_multiple_of(3),
            };
            // It may have been stopped.
            let _ = connection.set_priority(id, priority);
        }
        self.write(connection, id)
    }

    /// Writes as much as the connection accepts, then the end.
    fn write(&mut self, connection: &mut Connection, id: StreamId) -> Result<(), String> {
        let cut = self.plan.cut(id, self.side);
        let size = self.plan.contents(id, self.side).map_or(0, |c| c.len());
        let Some(rest) = self.sending.get_mut(&id) else {
            return Err(format!("{id:?} is writable and not written to"));
        };
        loop {
            if let Cut::Reset(after) | Cut::ResetAt(after, _) = cut
                && size - rest.len() >= after
            {
                self.sending.remove(&id);
                self.finished += 1;
                let reset = match cut {
                    Cut::ResetAt(_, reliable) => connection.reset_at(id, CUT_CODE, reliable as u64),
                    _ => connection.reset(id, CUT_CODE),
                };
                return match reset {
                    Err(error) if !connection.is_closed() => Err(format!("{id:?}: reset: {error}")),
                    _ => Ok(()),
                };
            }
            if rest.is_empty() {
                break;
            }
            if self.budget == 0 {
                self.paused.push(id);
                return Ok(());
            }
            let most = if self.plan.chunk == 0 {
                rest.len()
            } else {
                self.plan.chunk.min(rest.len())
            };
            let most = most.min(self.budget);
            let mut piece = rest.slice(..most);
            match connection.write(id, &mut piece) {
                Ok(taken) if taken > 0 && piece.len() == most - taken => {
                    rest.advance(taken);
                    self.written += taken as u64;
                    if self.writing != Writing::AtOnce {
                        self.budget -= taken;
                    }
                }
                // An event will follow, or is about to.
                Err(WriteError::Blocked | WriteError::Stopped(CUT_CODE)) => return Ok(()),
                Err(WriteError::Closed) if connection.is_closed() => return Ok(()),
                other => return Err(format!("{id:?}: write of {most} bytes gave {other:?}")),
            }
        }
        self.sending.remove(&id);
        match connection.finish(id) {
            Err(WriteError::Stopped(CUT_CODE)) => Ok(()),
            Err(error) if !connection.is_closed() => Err(format!("{id:?}: finish: {error}")),
            _ => Ok(()),
        }
    }

    /// Reads at most `max` bytes; `None` if none are available or left. On every other stream,
    /// takes the end together with the last bytes.
    fn read(
        &mut self,
        now: Time,
        connection: &mut Connection,
        id: StreamId,
        max: usize,
    ) -> Result<Option<usize>, String> {
        let cut = self.plan.cut(id, self.side.peer());
        let size = self
            .plan
            .contents(id, self.side.peer())
            .map_or(0, |c| c.len());
        let Some(expected) = self.receiving.get_mut(&id) else {
            return match cut {
                // Reported before it was stopped.
                Cut::Stop(_) => Ok(None),
                _ => Err(format!("{id:?} is readable and not expected")),
            };
        };
        if let Cut::Stop(after) = cut
            && size - expected.len() >= after
        {
            self.receiving.remove(&id);
            self.ended += 1;
            return match connection.stop_sending(id, CUT_CODE) {
                Err(error) if !connection.is_closed() => Err(format!("{id:?}: stop: {error}")),
                _ => Ok(None),
            };
        }
        match connection.read(id, max) {
            Ok(Some(bytes)) => {
                let offset = self.read;
                if bytes.len() > max || bytes.is_empty() {
                    return Err(format!("{id:?}: read gave {} bytes of {max}", bytes.len()));
                }
                if expected.get(..bytes.len()) != Some(&bytes[..]) {
                    return Err(format!(
                        "{id:?}: wrong bytes, {offset} bytes into everything read"
                    ));
                }
                expected.advance(bytes.len());
                let missing = expected.len();
                self.read += bytes.len() as u64;
                self.last_read = now;
                if (id.0 / 4).is_multiple_of(2) {
                    self.read_end(connection, id, missing)?;
                }
                Ok(Some(bytes.len()))
            }
            Ok(None) if expected.is_empty() => {
                self.receiving.remove(&id);
                self.ended += 1;
                Ok(None)
            }
            Ok(None) => Err(format!("{id:?} ended {} bytes early", expected.len())),
            Err(ReadError::Blocked) => Ok(None),
            Err(error) => {
                let read = size - expected.len();
                self.fail_to_read(connection, id, read, &error)?;
                Ok(None)
            }
        }
    }

    /// Takes the end of a stream of which `missing` bytes are still to be read, if it is there.
    fn read_end(
        &mut self,
        connection: &mut Connection,
        id: StreamId,
        missing: usize,
    ) -> Result<(), String> {
        let early = connection.is_early(id);
        match connection.read_end(id) {
            None => return Ok(()),
            Some(_) if missing > 0 => return Err(format!("{id:?} ended {missing} bytes early")),
            Some(was_early) if was_early != early => {
                return Err(format!("{id:?}: early: {early}, then {was_early}"));
            }
            Some(_) => {}
        }
        self.end_reading(id);
        match connection.read_end(id) {
            None => Ok(()),
            Some(_) => Err(format!("{id:?} ended twice")),
        }
    }

    /// Reads at most `max` bytes that may come from anywhere; `false` if none are available or
    /// left.
    fn read_unordered(
        &mut self,
        now: Time,
        connection: &mut Connection,
        id: StreamId,
        max: usize,
    ) -> Result<bool, String> {
        let cut = self.plan.cut(id, self.side.peer());
        let Some(expected) = self.receiving.get(&id) else {
            return match cut {
                // Reported before it was stopped.
                Cut::Stop(_) => Ok(false),
                _ => Err(format!("{id:?} is readable and not expected")),
            };
        };
        let taken = (self.taken.entry(id)).or_insert_with(|| Taken::none_of(expected.len()));
        let read = taken.count;
        if matches!(cut, Cut::Stop(after) if read >= after) {
            self.end_reading(id);
            return match connection.stop_sending(id, CUT_CODE) {
                Err(error) if !connection.is_closed() => Err(format!("{id:?}: stop: {error}")),
                _ => Ok(false),
            };
        }
        match connection.read_unordered(id, max) {
            Ok(Some((offset, bytes))) => {
                let range = offset as usize..offset as usize + bytes.len();
                if bytes.len() > max || bytes.is_empty() {
                    return Err(format!("{id:?}: read gave {} bytes of {max}", bytes.len()));
                }
                if expected.get(range.clone()) != Some(&bytes[..]) {
                    return Err(format!("{id:?}: wrong bytes at {range:?}"));
                }
                if !taken.take(range.clone()) {
                    return Err(format!("{id:?}: bytes of {range:?} were read twice"));
                }
                self.read += bytes.len() as u64;
                self.last_read = now;
                Ok(true)
            }
            Ok(None) if read == expected.len() => {
                self.end_reading(id);
                Ok(false)
            }
            Ok(None) => Err(format!(
                "{id:?} ended after {read} bytes of {}",
                expected.len()
            )),
            Err(ReadError::Blocked) => Ok(false),
            Err(error) => {
                let read = taken.in_order();
                self.fail_to_read(connection, id, read, &error)?;
                Ok(false)
            }
        }
    }

    /// A read failed after the first `read` bytes of the stream.
    fn fail_to_read(
        &mut self,
        connection: &Connection,
        id: StreamId,
        read: usize,
        error: &ReadError,
    ) -> Result<(), String> {
        let cut = self.plan.cut(id, self.side.peer());
        match (error, cut) {
            (ReadError::Reset(CUT_CODE), Cut::Reset(_)) => self.end_reading(id),
            (ReadError::Reset(CUT_CODE), Cut::ResetAt(_, reliable)) if read >= reliable => {
                self.end_reading(id);
            }
            (ReadError::Closed, _) if connection.is_closed() => {}
            _ => return Err(format!("{id:?}: read, after {read} bytes: {error}")),
        }
        Ok(())
    }

    fn end_reading(&mut self, id: StreamId) {
        self.receiving.remove(&id);
        self.taken.remove(&id);
        self.ended += 1;
    }
}

/// Which bytes of a stream were read, in any order.
#[derive(Debug)]
struct Taken {
    bytes: Vec<bool>,
    /// How many were.
    count: usize,
}

impl Taken {
    fn none_of(len: usize) -> Self {
        Self {
            bytes: vec![false; len],
            count: 0,
        }
    }

    /// Takes some; `false` if one was taken before.
    fn take(&mut self, range: Range<usize>) -> bool {
        let bytes = &mut self.bytes[range];
        let are_new = !bytes.contains(&true);
        bytes.fill(true);
        self.count += bytes.len();
        are_new
    }

    /// Bytes before the first that was not taken.
    fn in_order(&self) -> usize {
        let first = self.bytes.iter().position(|taken| !taken);
        first.unwrap_or(self.bytes.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_taken_once_and_counted_in_any_order() {
        let mut taken = Taken::none_of(10);
        assert!(taken.take(4..8) && taken.take(0..2));
        assert_eq!((taken.count, taken.in_order()), (6, 2));
        assert!(!taken.take(7..9), "byte 7 was taken before");
        assert!(taken.take(2..4) && taken.take(9..10));
        assert_eq!(taken.in_order(), 10);
    }
}
