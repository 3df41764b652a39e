//! Where plaintext comes from and where it goes: the packet, a source, a target.

use super::CHUNK;
use crate::kernel::ghash;
use crate::kernel::lanes::Lanes;
use crate::kernel::prefetch;
use crate::span::TAG_LEN;

/// Where a packet's plaintext lies: up to `head` in the packet, from there on in `source`.
pub(super) struct Plaintext<'a> {
    head: usize,
    source: &'a [u8],
}

impl<'a> Plaintext<'a> {
    const IN_PLACE: Self = Self {
        head: usize::MAX,
        source: &[],
    };

    /// Registers are read either from the packet or from the source. Those that hold a bit of both,
    /// where the two join and at the end, are completed in the packet. If the source is short, all
    /// of it is copied there.
    #[inline(always)]
    pub(super) fn new<L: Lanes>(payload: &mut [u8], source: &'a [u8]) -> Self {
        if source.is_empty() {
            return Self::IN_PLACE;
        }
        let head = payload.len() - source.len();
        let Some(room) = payload.get_mut(head..) else {
            return Self::IN_PLACE;
        };
        let joins = (
            L::vectors(source).0.first(),
            source
                .len()
                .checked_sub(L::WIDTH)
                .and_then(|at| room.get_mut(at..)),
        );
        let (Some(first), Some(end)) = joins else {
            room.copy_from_slice(source);
            return Self::IN_PLACE;
        };
        end.copy_from_slice(&source[source.len() - L::WIDTH..]);
        if let Some(start) = L::vectors_mut(room).0.first_mut() {
            *start = *first;
        }
        Self { head, source }
    }

    /// The register at an offset of the payload, if it is to be read from the source.
    #[inline(always)]
    pub(super) fn register<L: Lanes>(&self, at: usize) -> Option<&'a L::Bytes> {
        L::vectors(self.source.get(at.checked_sub(self.head)?..)?)
            .0
            .first()
    }

    #[inline(always)]
    fn chunk<L: Lanes>(&self, at: usize) -> Option<&'a [L::Bytes; CHUNK]> {
        L::vectors(self.source.get(at.checked_sub(self.head)?..)?)
            .0
            .first_chunk()
    }

    /// The registers of a chunk after its first one, if the first is read from the packet, as at
    /// the beginning of most packets.
    #[inline(always)]
    fn after_first<L: Lanes>(&self, at: usize) -> Option<&'a [L::Bytes; CHUNK - 1]> {
        L::vectors(self.source.get((at + L::WIDTH).checked_sub(self.head)?..)?)
            .0
            .first_chunk()
    }

    /// Encrypts the chunk at an offset of the payload.
    #[inline(always)]
    pub(super) fn encrypt_chunk<L: Lanes>(
        &self,
        l: L,
        chunk: &mut [L::Bytes; CHUNK],
        at: usize,
        pad: [L::V; CHUNK],
    ) {
        if let Some(source) = self.chunk::<L>(at) {
            prefetch::next_packet(source, CHUNK * L::WIDTH);
            for i in 0..CHUNK {
                l.store(&mut chunk[i], l.xor(pad[i], l.load(&source[i])));
            }
        } else if at + CHUNK * L::WIDTH <= self.head {
            for i in 0..CHUNK {
                let sealed = l.xor(pad[i], l.load(&chunk[i]));
                l.store(&mut chunk[i], sealed);
            }
        } else if let Some(source) = self.after_first::<L>(at) {
            let sealed = l.xor(pad[0], l.load(&chunk[0]));
            l.store(&mut chunk[0], sealed);
            for i in 1..CHUNK {
                l.store(&mut chunk[i], l.xor(pad[i], l.load(&source[i - 1])));
            }
        } else {
            for i in 0..CHUNK {
                let from = self.register::<L>(at + i * L::WIDTH).unwrap_or(&chunk[i]);
                let sealed = l.xor(pad[i], l.load(from));
                l.store(&mut chunk[i], sealed);
            }
        }
    }

    /// Encrypts the tail at an offset of the payload: `N` registers, the last one of `last_len`
    /// bytes. `tail` has room for the tag, which gets zeros where the last register reaches into
    /// it. `stash` gets the ciphertext, and zeros after its end.
    #[inline(always)]
    pub(super) fn encrypt_tail<L: Lanes, const N: usize>(
        &self,
        l: L,
        (tail, last_len): (&mut [u8], usize),
        at: usize,
        pad: [L::V; N],
        stash: &mut [L::Bytes; CHUNK],
    ) {
        let (full, last) = tail.split_at_mut((N - 1) * L::WIDTH);
        let full = L::vectors_mut(full).0;
        if let Some(from) = at.checked_sub(self.head)
            && let Some(source) = self.source.get(from..)
            && source.len() >= (N - 1) * L::WIDTH
        {
            prefetch::next_packet(source, N * L::WIDTH);
            let source = L::vectors(source).0;
            for i in 0..N - 1 {
                let sealed = l.xor(pad[i], l.load(&source[i]));
                l.store(&mut full[i], sealed);
                l.store(&mut stash[i], sealed);
            }
        } else if at + (N - 1) * L::WIDTH <= self.head {
            for i in 0..N - 1 {
                let sealed = l.xor(pad[i], l.load(&full[i]));
                l.store(&mut full[i], sealed);
                l.store(&mut stash[i], sealed);
            }
        } else {
            for (i, register) in full.iter_mut().enumerate() {
                let from = self.register::<L>(at + i * L::WIDTH).unwrap_or(register);
                let sealed = l.xor(pad[i], l.load(from));
                l.store(register, sealed);
                l.store(&mut stash[i], sealed);
            }
        }
        let sealed = l.and(
            l.xor(pad[N - 1], l.load_part(last)),
            ghash::mask(l, last_len),
        );
        l.store_part(last, sealed);
        l.store(&mut stash[N - 1], sealed);
    }
}

/// Where a packet's plaintext goes: up to `head` in place, from there on to `target`.
pub(super) struct Destination<'t> {
    pub(super) head: usize,
    target: &'t mut [u8],
}

impl<'t> Destination<'t> {
    #[inline(always)]
    pub(super) fn new(payload_len: usize, target: &'t mut [u8]) -> Self {
        let head = match target.len() {
            0 => usize::MAX,
            len => payload_len - len,
        };
        Self { head, target }
    }

    /// The registers at an offset of the payload, if all of them are in the target.
    #[inline(always)]
    fn registers<L: Lanes, const N: usize>(&mut self, at: usize) -> Option<&mut [L::Bytes; N]> {
        L::vectors_mut(self.target.get_mut(at.checked_sub(self.head)?..)?)
            .0
            .first_chunk_mut()
    }

    /// Stores a register's plaintext at an offset of the payload.
    #[inline(always)]
    pub(super) fn store<L: Lanes>(&mut self, l: L, place: &mut L::Bytes, at: usize, opened: L::V) {
        match self.registers::<L, 1>(at) {
            Some([target]) => l.store(target, opened),
            None => l.store(place, opened),
        }
    }

    /// Decrypts the registers at an offset of the payload. Registers of which only a part belongs
    /// to the target are decrypted in place; [`complete`](Self::complete) copies from there.
    #[inline(always)]
    pub(super) fn decrypt<L: Lanes, const N: usize>(
        &mut self,
        l: L,
        registers: &mut [L::Bytes; N],
        at: usize,
        pad: [L::V; N],
    ) {
        if at + N * L::WIDTH <= self.head {
            for (register, pad) in registers.iter_mut().zip(pad) {
                l.store(register, l.xor(pad, l.load(register)));
            }
        } else if let Some(target) = self.registers::<L, N>(at) {
            for ((register, target), pad) in registers.iter().zip(target).zip(pad) {
                l.store(target, l.xor(pad, l.load(register)));
            }
        } else {
            for (i, (register, pad)) in registers.iter_mut().zip(pad).enumerate() {
                let opened = l.xor(pad, l.load(register));
                self.store(l, register, at + i * L::WIDTH, opened);
            }
        }
    }

    /// Copies what was decrypted in place but belongs to the target: the rest of the register in
    /// which the target begins, and the last register. The registers begin `lead` bytes before the
    /// payload.
    #[inline(always)]
    pub(super) fn complete<L: Lanes>(self, payload: &[u8], lead: usize, last_len: usize) {
        if self.target.is_empty() {
            return;
        }
        let last = (payload.len() - last_len).max(self.head);
        let join_end = ((self.head + lead).next_multiple_of(L::WIDTH) - lead).min(last);
        let (head, target) = (self.head, self.target);
        copy_short(&mut target[..join_end - head], &payload[head..join_end]);
        copy_short(&mut target[last - head..], &payload[last..]);
    }
}

/// Copies at most 64 bytes, in two pieces of one size, which mostly overlap.
#[inline(always)]
fn copy_short(to: &mut [u8], from: &[u8]) {
    #[inline(always)]
    fn by_ends<const N: usize>(to: &mut [u8], from: &[u8]) -> bool {
        let (Some(first), Some(last)) = (from.first_chunk::<N>(), from.last_chunk::<N>()) else {
            return false;
        };
        let (first, last) = (*first, *last);
        if let Some(to) = to.first_chunk_mut() {
            *to = first;
        }
        if let Some(to) = to.last_chunk_mut() {
            *to = last;
        }
        true
    }
    if from.is_empty() || by_ends::<32>(to, from) || by_ends::<16>(to, from) {
        return;
    }
    if !(by_ends::<8>(to, from) || by_ends::<4>(to, from) || by_ends::<2>(to, from)) {
        to.copy_from_slice(from);
    }
}

/// Whether some bytes end with the expected tag. Constant time: all bytes are compared at once.
#[inline(always)]
pub(super) fn is_right(tail: &[u8], expected: &[u8; TAG_LEN]) -> bool {
    let tag = tail.last_chunk().expect("a job has room for a tag");
    u128::from_le_bytes(*expected) ^ u128::from_le_bytes(*tag) == 0
}
