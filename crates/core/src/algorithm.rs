//! The name of a congestion control algorithm, for the configuration.

/// How the congestion window reacts to acknowledgements and losses.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum CongestionAlgorithm {
    /// The algorithm that RFC 9002 §7 spells out.
    NewReno,
    /// RFC 9438, with the slow start of HyStart++ (RFC 9406).
    #[default]
    Cubic,
}

impl CongestionAlgorithm {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::NewReno, Self::Cubic];
}
