//! The progress line on a terminal; nothing elsewhere.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A line on standard error, drawn by the measuring thread between two measurements: a thread of
/// its own would compete with them. Gone when dropped.
pub(crate) struct Progress(ProgressBar);

impl Progress {
    /// A line for this many steps.
    pub(crate) fn start(steps: usize) -> Self {
        let bar = ProgressBar::with_draw_target(Some(steps as u64), ProgressDrawTarget::stderr());
        let template = "{spinner} {pos} of {len} {msg} (left: {eta})";
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        Self(bar)
    }

    /// Shows what is measured next.
    pub(crate) fn show(&self, text: String) {
        self.0.set_message(text);
    }

    /// Shows that something is in progress.
    pub(crate) fn tick(&self) {
        self.0.tick();
    }

    /// Counts a finished step.
    pub(crate) fn step(&self) {
        self.0.inc(1);
    }

    /// Prints a line without disturbing the progress line.
    pub(crate) fn say(&self, text: &str) {
        self.0.suspend(|| crate::output::say(text));
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
