//! Reads a file for a response.
//!
//! Chunks are read into buffers of a pool, which return when the transport drops the `Bytes`. The
//! file is not mapped: if it were truncated while being served, the process would end (SIGBUS),
//! whereas a short read ends one response. Mapping would gain nothing either: out of the page
//! cache, reading takes 0.21 s of CPU per GiB with chunks from 64 KiB to 1 MiB, a map of the whole
//! file 0.20, and maps of 128 KiB 0.27 (each with one pass over the data, which takes 0.04). On
//! Linux a chunk in the page cache is read at once (`RWF_NOWAIT`); only data from the disk is read
//! on another thread.

use std::fs::File;
use std::future::Future as _;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use bytes::Bytes;
use tokio::task::{JoinHandle, spawn_blocking};

/// Bytes of a chunk.
const CHUNK: usize = 128 << 10;

/// Free buffers kept in the pool: 8 MiB.
const POOLED: usize = 64;

/// Buffers for chunks.
#[derive(Debug, Default)]
pub(crate) struct Pool(Mutex<Vec<Box<[u8]>>>);

impl Pool {
    fn take(self: &Arc<Self>) -> Buffer {
        let free = self.0.lock().unwrap_or_else(PoisonError::into_inner).pop();
        Buffer {
            bytes: free.unwrap_or_else(|| vec![0; CHUNK].into()),
            len: 0,
            pool: Arc::clone(self),
        }
    }
}

/// A buffer whose first bytes have been read. It returns to its pool.
struct Buffer {
    bytes: Box<[u8]>,
    len: usize,
    pool: Arc<Pool>,
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let mut free = self.pool.0.lock().unwrap_or_else(PoisonError::into_inner);
        if free.len() < POOLED {
            free.push(std::mem::take(&mut self.bytes));
        }
    }
}

/// A part of a file that is being sent.
pub(crate) struct Reader {
    file: Arc<File>,
    pool: Arc<Pool>,
    offset: u64,
    remaining: u64,
    /// A read on another thread.
    reading: Option<JoinHandle<io::Result<Buffer>>>,
    /// Whether the file system can report that a read would wait.
    can_try: bool,
}

impl Reader {
    /// `len` bytes of a file from `offset` on.
    pub(crate) fn new(file: Arc<File>, pool: Arc<Pool>, offset: u64, len: u64) -> Self {
        Self {
            file,
            pool,
            offset,
            remaining: len,
            reading: None,
            can_try: cfg!(target_os = "linux"),
        }
    }

    /// Bytes still to come.
    pub(crate) fn remaining(&self) -> u64 {
        self.remaining
    }

    /// The next bytes, `None` at the end. Fails if the file has become shorter.
    pub(crate) fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        if self.remaining == 0 {
            return Poll::Ready(None);
        }
        if self.reading.is_none() {
            let wanted = usize::try_from(self.remaining).map_or(CHUNK, |left| left.min(CHUNK));
            let mut buffer = self.pool.take();
            if self.can_try {
                match try_read(&self.file, &mut buffer.bytes[..wanted], self.offset) {
                    Tried::Read(len) => {
                        buffer.len = len;
                        return Poll::Ready(Some(self.deliver(buffer)));
                    }
                    Tried::WouldWait => {}
                    Tried::Unsupported => self.can_try = false,
                }
            }
            let (file, offset) = (Arc::clone(&self.file), self.offset);
            self.reading = Some(spawn_blocking(move || {
                buffer.len = read_at(&file, &mut buffer.bytes[..wanted], offset)?;
                Ok(buffer)
            }));
        }
        let Some(reading) = &mut self.reading else {
            return Poll::Ready(None);
        };
        let read = std::task::ready!(Pin::new(reading).poll(cx));
        self.reading = None;
        Poll::Ready(Some(match read {
            Ok(Ok(buffer)) => self.deliver(buffer),
            Ok(Err(error)) => Err(error),
            // The runtime is shutting down.
            Err(error) => Err(io::Error::other(error)),
        }))
    }

    fn deliver(&mut self, buffer: Buffer) -> io::Result<Bytes> {
        let len = buffer.len as u64;
        if len == 0 {
            self.remaining = 0;
            let why = "the file has become shorter";
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, why));
        }
        self.offset += len;
        self.remaining -= len;
        Ok(Bytes::from_owner(buffer))
    }
}

/// The outcome of an attempt to read without waiting.
enum Tried {
    Read(usize),
    WouldWait,
    /// This file system cannot tell.
    Unsupported,
}

#[cfg(target_os = "linux")]
fn try_read(file: &File, buffer: &mut [u8], offset: u64) -> Tried {
    use rustix::io::{Errno, ReadWriteFlags, preadv2};
    let mut buffers = [io::IoSliceMut::new(buffer)];
    match preadv2(file, &mut buffers, offset, ReadWriteFlags::NOWAIT) {
        Ok(len) => Tried::Read(len),
        Err(Errno::AGAIN | Errno::INTR) => Tried::WouldWait,
        // A read that waits reports any other error.
        Err(_) => Tried::Unsupported,
    }
}

#[cfg(not(target_os = "linux"))]
fn try_read(_file: &File, _buffer: &mut [u8], _offset: u64) -> Tried {
    Tried::Unsupported
}

/// Reads until the buffer is full or the file ends.
fn read_at(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    let mut done = 0;
    while done < buffer.len() {
        match read_some_at(file, &mut buffer[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(len) => done += len,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

#[cfg(unix)]
fn read_some_at(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    std::os::unix::fs::FileExt::read_at(file, buffer, offset)
}

#[cfg(windows)]
fn read_some_at(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
    std::os::windows::fs::FileExt::seek_read(file, buffer, offset)
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;
    use crate::serve::scratch::Scratch;

    /// Numbers that a misplaced chunk would change.
    fn content(len: usize) -> Vec<u8> {
        (0..len).map(|at| (at / 251 + at) as u8).collect()
    }

    async fn read_all(mut reader: Reader) -> io::Result<Vec<u8>> {
        let mut all = Vec::new();
        while let Some(read) = poll_fn(|cx| reader.poll_read(cx)).await {
            all.extend_from_slice(&read?);
        }
        Ok(all)
    }

    fn run<T>(future: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        runtime.expect("a runtime").block_on(future)
    }

    #[test]
    fn any_range_is_read_with_and_without_a_blocking_thread() {
        let scratch = Scratch::new("reader");
        let expected = content(3 * CHUNK + 17);
        scratch.write("file", &expected);
        let file = Arc::new(File::open(scratch.path().join("file")).expect("the file"));
        let pool = Arc::new(Pool::default());
        for (offset, len) in [
            (0, 0),
            (0, 1),
            (5, CHUNK),
            (7, 2 * CHUNK + 1),
            (0, expected.len()),
        ] {
            for can_try in [true, false] {
                let mut reader = Reader::new(
                    Arc::clone(&file),
                    Arc::clone(&pool),
                    offset as u64,
                    len as u64,
                );
                reader.can_try &= can_try;
                let read = run(read_all(reader)).expect("the file is readable");
                assert!(read == expected[offset..offset + len], "{offset} {len}");
            }
        }
        // Every chunk has returned.
        let free = pool.0.lock().expect("no panic").len();
        assert!((1..=2).contains(&free), "{free}");
    }

    #[test]
    fn a_file_truncated_while_it_is_read_is_an_error() {
        let scratch = Scratch::new("shorter");
        scratch.write("file", &content(100));
        let file = Arc::new(File::open(scratch.path().join("file")).expect("the file"));
        for can_try in [true, false] {
            let mut reader = Reader::new(Arc::clone(&file), Arc::default(), 50, 51);
            reader.can_try &= can_try;
            let error = run(read_all(reader)).expect_err("the file is too short");
            assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        }
    }
}
