//! Work done between the rounds of the cipher.

/// Pauses between the rounds, for other work.
pub(in crate::kernel) const PAUSES: usize = 20;

/// Work to do in the pauses. A trait, because a closure cannot be forced to dissolve in the rounds,
/// and a call there costs every vector register.
pub(in crate::kernel) trait Meanwhile {
    /// Called [`PAUSES`] times.
    fn step(&mut self);
}

/// No work.
pub(in crate::kernel) struct Nothing;

impl Meanwhile for Nothing {
    #[inline(always)]
    fn step(&mut self) {}
}
