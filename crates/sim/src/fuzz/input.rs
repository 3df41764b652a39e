//! The fuzzer's bytes as values.

/// Takes values from the front of the input; zeros after its end.
pub(super) struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    pub(super) const fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn u8(&mut self) -> u8 {
        self.0.split_off_first().copied().unwrap_or(0)
    }

    pub(super) fn u16(&mut self) -> u16 {
        u16::from_be_bytes([self.u8(), self.u8()])
    }

    /// This many bytes, or those that are left.
    pub(super) fn bytes(&mut self, len: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        taken
    }

    /// Some bytes, preceded by their number.
    pub(super) fn some_bytes(&mut self) -> &'a [u8] {
        let len = usize::from(self.u8());
        self.bytes(len)
    }
}
