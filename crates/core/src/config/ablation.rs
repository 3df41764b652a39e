//! Switches that turn a technique off, to measure what it is worth.

/// For measuring only (`squall perf --ablation`): turns off techniques that have no setting because
/// there is no other reason to turn them off. The application gets the same bytes either way; each
/// switch is checked once per bundle or run of packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ablation {
    /// Packets that one stream fills are written and taken one by one instead of in runs.
    pub no_runs: bool,
    /// Stream data is copied into its packet and sealed there, instead of being sealed from where
    /// the application left it.
    pub copies_before_sealing: bool,
    /// Header protection is applied after the AEAD of a whole bundle, instead of in its pass.
    pub header_protection_apart: bool,
}
