//! Requests over TCP or TLS over TCP, pipelined on one connection, where QUIC has a stream for
//! each.
//!
//! ```text
//!   client   N requests, one write ─► reads what is there: M responses ─► M requests, one write
//!   server   reads what is there  ──►  the responses to all whole requests in it, one write
//! ```
//! `operations` and `peers/` each bring their own [`Responses`].

use std::io;

use bytes::Bytes;

use super::channel::{BATCH, Channel};
use crate::source::Source;

/// Maximum bytes of requests in flight, if there is more than one. Both ends block while they
/// write: if more were in flight than the sockets hold, each could wait for the other to read.
const UNDER_WAY: usize = 64 * 1024;

/// A client's work.
pub struct Pipeline {
    /// A complete request.
    pub request: Bytes,
    /// Bytes of a response; at least one.
    pub response: u64,
    /// Requests at a time.
    pub in_flight: usize,
}

/// Checks a client's responses.
pub trait Responses {
    /// Takes the next bytes of the current response.
    fn take(&mut self, bytes: &[u8]);
    /// Called after the last bytes of a response.
    ///
    /// # Errors
    /// The response is not what was asked for.
    fn complete(&mut self) -> io::Result<()>;
    /// How many more requests to send, at most `room`. Called at the beginning, and after each read
    /// that completed some.
    fn wanted(&mut self, room: usize) -> usize;
}

/// Maximum number of requests of this size in flight.
pub fn depth(request: usize, in_flight: usize) -> usize {
    in_flight.min(UNDER_WAY / request.max(1)).max(1)
}

/// A client: keeps requests in flight until no more are wanted and all are answered.
///
/// # Errors
/// The connection broke, or a response is not what was asked for.
pub fn ask(
    channel: &mut impl Channel,
    pipeline: &Pipeline,
    responses: &mut impl Responses,
) -> io::Result<()> {
    let one = pipeline.request.len();
    let room = depth(one, pipeline.in_flight);
    let requests = pipeline.request.repeat(room);
    let mut under_way = responses.wanted(room).min(room);
    channel.send(&requests[..under_way * one])?;
    let mut left = pipeline.response;
    while under_way > 0 {
        let mut result = Ok(());
        let mut answered = 0;
        let more = channel.receive(&mut |mut bytes| {
            while !bytes.is_empty() && result.is_ok() {
                let len = usize::try_from(left).map_or(bytes.len(), |left| left.min(bytes.len()));
                let (own, rest) = bytes.split_at(len);
                responses.take(own);
                bytes = rest;
                left -= own.len() as u64;
                if left == 0 {
                    left = pipeline.response;
                    answered += 1;
                    result = responses.complete();
                }
            }
        })?;
        result?;
        if more.is_none() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        under_way = (under_way.checked_sub(answered))
            .ok_or_else(|| io::Error::other("more responses than requests"))?;
        if answered > 0 {
            let next = responses.wanted(answered).min(answered);
            if next > 0 {
                channel.send(&requests[..next * one])?;
                under_way += next;
            }
        }
    }
    Ok(())
}

/// A server: answers requests of one size with responses of another until the client says that it
/// is done. The client waits for up to `in_flight` responses at a time.
///
/// # Errors
/// The connection broke.
pub fn answer(
    channel: &mut impl Channel,
    request: usize,
    response: u64,
    in_flight: usize,
) -> io::Result<()> {
    // As many responses as fit one write and can be requested at a time; a single one comes from
    // the memory that all connections share.
    let small = usize::try_from(response)
        .ok()
        .filter(|len| (1..=BATCH).contains(len) && (BATCH / len).min(in_flight) > 1);
    let several = small.map_or_else(Vec::new, |len| {
        let number = (BATCH / len).min(in_flight);
        Source::new(None).next(len).repeat(number)
    });
    let mut unread = 0;
    loop {
        if channel
            .receive(&mut |bytes| unread += bytes.len())?
            .is_none()
        {
            return channel.finish();
        }
        let mut whole = unread / request;
        unread %= request;
        while let (Some(len), 1..) = (small, whole) {
            let now = whole.min(several.len() / len);
            channel.send(&several[..now * len])?;
            whole -= now;
        }
        for _ in 0..whole {
            send_large(channel, response)?;
        }
    }
}

fn send_large(channel: &mut impl Channel, mut left: u64) -> io::Result<()> {
    let mut source = Source::new(None);
    while left > 0 {
        let piece = source.next(usize::try_from(left).map_or(BATCH, |left| left.min(BATCH)));
        channel.send(&piece)?;
        left -= piece.len() as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    /// A connection whose peer follows a test's script.
    #[derive(Default)]
    struct Scripted {
        reads: VecDeque<Vec<u8>>,
        writes: Vec<usize>,
    }

    impl Channel for Scripted {
        fn send(&mut self, data: &[u8]) -> io::Result<()> {
            self.writes.push(data.len());
            Ok(())
        }

        fn receive(&mut self, sink: &mut dyn FnMut(&[u8])) -> io::Result<Option<usize>> {
            Ok(self.reads.pop_front().map(|bytes| {
                sink(&bytes);
                bytes.len()
            }))
        }

        fn prepare_to_receive(&self) -> io::Result<()> {
            Ok(())
        }

        fn finish(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Wants this many responses.
    struct Wanting {
        more: usize,
        bytes: usize,
        complete: usize,
    }

    impl Responses for Wanting {
        fn take(&mut self, bytes: &[u8]) {
            self.bytes += bytes.len();
        }

        fn complete(&mut self) -> io::Result<()> {
            self.complete += 1;
            Ok(())
        }

        fn wanted(&mut self, room: usize) -> usize {
            let now = self.more.min(room);
            self.more -= now;
            now
        }
    }

    fn run(reads: &[usize], more: usize) -> (io::Result<()>, Scripted, Wanting) {
        let mut channel = Scripted {
            reads: reads.iter().map(|len| vec![0; *len]).collect(),
            ..Scripted::default()
        };
        let pipeline = Pipeline {
            request: Bytes::from_static(&[0; 10]),
            response: 100,
            in_flight: 3,
        };
        let mut wanting = Wanting {
            more,
            bytes: 0,
            complete: 0,
        };
        let result = ask(&mut channel, &pipeline, &mut wanting);
        (result, channel, wanting)
    }

    #[test]
    fn a_request_is_sent_for_each_completed_response() {
        // Cut at odd places: half a response, the rest with a whole one, two at once.
        let (result, channel, wanting) = run(&[50, 150, 200, 100], 5);
        result.expect("all requests are answered");
        assert_eq!(channel.writes, [30, 20]);
        assert_eq!((wanting.bytes, wanting.complete), (500, 5));
    }

    #[test]
    fn an_early_end_and_an_excess_response_are_errors() {
        let (result, ..) = run(&[100], 3);
        let error = result.expect_err("two are missing");
        assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        let (result, ..) = run(&[400], 3);
        assert!(
            result
                .expect_err("an excess response")
                .to_string()
                .contains("more")
        );
    }

    #[test]
    fn complete_requests_are_answered_at_once() {
        let reads = [25, 15, 3];
        let mut channel = Scripted {
            reads: reads.iter().map(|len| vec![0; *len]).collect(),
            ..Scripted::default()
        };
        answer(&mut channel, 10, 7, 3).expect("a clean end");
        assert_eq!(channel.writes, [14, 14]);
        // A response too large for a single write.
        let mut channel = Scripted {
            reads: [vec![0; 10]].into(),
            ..Scripted::default()
        };
        let response = BATCH as u64 + 1;
        answer(&mut channel, 10, response, 3).expect("a clean end");
        assert_eq!(channel.writes, [BATCH, 1]);
    }

    #[test]
    fn no_more_is_in_flight_than_socket_buffers_hold() {
        assert_eq!(depth(100, 100), 100);
        assert_eq!(depth(10_000, 100), 6);
        assert_eq!(depth(200_000, 100), 1);
    }
}
