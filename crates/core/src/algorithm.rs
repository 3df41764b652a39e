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
    /// BBR version 3 (draft-ietf-ccwg-bbr): a model of the path instead of losses. It paces,
    /// whatever `TransportConfig::pacing` says.
    Bbr,
}

impl CongestionAlgorithm {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::NewReno, Self::Cubic, Self::Bbr];
}
