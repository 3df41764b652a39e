//! Text within a width: tables whose columns are as wide as their figures, and prose in lines.
//!
//! A table that is too wide is printed in several blocks, each with the labels of its rows. It
//! breaks between groups of columns first, and within a group only if that group alone is too wide.

use std::io::IsTerminal;

use crate::sys;

/// The width of a pipe or a file, and of a terminal that does not report its own.
const WIDTH: usize = 80;

/// Below this, a terminal's width is ignored: no table could be read there.
const MIN_WIDTH: usize = 40;

/// Columns of text that standard output has room for: the terminal's, or 80.
pub fn width() -> usize {
    Some(std::io::stdout())
        .filter(IsTerminal::is_terminal)
        .and_then(|stdout| sys::terminal_columns(&stdout))
        .map_or(WIDTH, |columns| columns.max(MIN_WIDTH))
}

/// A column of figures, all aligned to the right.
#[derive(Clone, Debug)]
pub struct Column {
    /// What the figures are.
    pub heading: &'static str,
    /// A figure for each row.
    pub cells: Vec<String>,
}

impl Column {
    /// A column with these figures.
    pub fn new(heading: &'static str, cells: impl IntoIterator<Item = String>) -> Self {
        Self {
            heading,
            cells: cells.into_iter().collect(),
        }
    }

    fn width(&self) -> usize {
        let cells = self.cells.iter().map(|cell| len(cell));
        cells.chain([len(self.heading)]).max().unwrap_or(0)
    }
}

/// Columns that belong together.
#[derive(Clone, Debug)]
pub struct Group {
    /// The heading above all of the columns; empty: none.
    pub title: String,
    /// The columns, from left to right.
    pub columns: Vec<Column>,
}

/// A table.
#[derive(Clone, Debug)]
pub struct Grid {
    /// What the table shows, above the labels; empty: nothing.
    pub title: String,
    /// The names of the rows, aligned to the left.
    pub labels: Vec<String>,
    /// The columns.
    pub groups: Vec<Group>,
}

/// The space before each column.
const GAP: usize = 2;

/// Columns of one group that fit next to each other, with their widths.
struct Piece<'a> {
    title: &'a str,
    columns: Vec<(&'a Column, usize)>,
}

impl Piece<'_> {
    fn width(&self) -> usize {
        self.columns.iter().map(|(_, width)| GAP + width).sum()
    }

    /// Widens the columns to make room for the title.
    fn widen(&mut self) {
        let missing = (GAP + len(self.title)).saturating_sub(self.width());
        if let Some((_, width)) = self.columns.first_mut() {
            *width += missing;
        }
    }
}

impl Grid {
    /// The table in at most `width` columns of text, unless the labels and a single column need
    /// more. Each line ends in a line feed.
    pub fn text(&self, width: usize) -> String {
        let labels = self.labels.iter().chain([&self.title]);
        let label_width = labels.map(|label| len(label)).max().unwrap_or(0);
        let room = width.saturating_sub(label_width);
        let mut blocks: Vec<Vec<Piece<'_>>> = Vec::new();
        let mut left = 0;
        for piece in self.groups.iter().flat_map(|group| pieces(group, room)) {
            match blocks.last_mut() {
                Some(block) if piece.width() <= left => {
                    left -= piece.width();
                    block.push(piece);
                }
                _ => {
                    left = room.saturating_sub(piece.width());
                    blocks.push(vec![piece]);
                }
            }
        }
        let blocks: Vec<String> = (blocks.iter())
            .map(|block| self.block(block, label_width))
            .collect();
        blocks.join("\n")
    }

    fn block(&self, pieces: &[Piece<'_>], label_width: usize) -> String {
        let mut text = String::new();
        let mut line = |label: &str, rest: String| {
            let line = format!("{label:<label_width$}{rest}");
            text += line.trim_end();
            text.push('\n');
        };
        let titles = pieces.iter().map(|piece| {
            let width = piece.width() - GAP;
            format!("{:GAP$}{:^width$}", "", piece.title)
        });
        if !self.title.is_empty() || pieces.iter().any(|piece| !piece.title.is_empty()) {
            line(&self.title, titles.collect());
        }
        let columns: Vec<_> = pieces.iter().flat_map(|piece| &piece.columns).collect();
        let headings = columns.iter().map(|(column, width)| {
            let width = GAP + width;
            format!("{:>width$}", column.heading)
        });
        line("", headings.collect());
        for (at, label) in self.labels.iter().enumerate() {
            let cells = columns.iter().map(|(column, width)| {
                let width = GAP + width;
                format!(
                    "{:>width$}",
                    column.cells.get(at).map_or("", String::as_str)
                )
            });
            line(label, cells.collect());
        }
        text
    }
}

/// The whole group if there is room, or parts of it that fit.
fn pieces(group: &Group, room: usize) -> Vec<Piece<'_>> {
    let mut pieces: Vec<Piece<'_>> = Vec::new();
    for column in &group.columns {
        let column = (column, column.width());
        match pieces.last_mut() {
            Some(piece) if piece.width() + GAP + column.1 <= room => piece.columns.push(column),
            _ => pieces.push(Piece {
                title: &group.title,
                columns: vec![column],
            }),
        }
    }
    pieces.iter_mut().for_each(Piece::widen);
    pieces
}

/// Breaks lines that are longer than `width` between words; continuation lines are indented.
pub fn wrap(text: &str, width: usize) -> String {
    const INDENT: &str = "  ";
    let mut wrapped = String::new();
    for line in text.split_inclusive('\n') {
        if len(line.trim_end_matches('\n')) <= width {
            wrapped += line;
            continue;
        }
        let mut column = 0;
        for word in line.split_whitespace() {
            if column > 0 && column + 1 + len(word) > width {
                wrapped.push('\n');
                wrapped += INDENT;
                column = INDENT.len();
            } else if column > 0 {
                wrapped.push(' ');
                column += 1;
            }
            wrapped += word;
            column += len(word);
        }
        if line.ends_with('\n') {
            wrapped.push('\n');
        }
    }
    wrapped
}

fn len(text: &str) -> usize {
    text.chars().count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grid(figure: f64) -> Grid {
        let column = |heading| Column::new(heading, [format!("{figure:.1}"), "-".to_owned()]);
        let group = |title: &str| Group {
            title: title.to_owned(),
            columns: vec![column("ns/packet"), column("cycles/B"), column("%")],
        };
        Grid {
            title: "by stage".to_owned(),
            labels: vec!["AEAD".to_owned(), "streams and copies".to_owned()],
            groups: vec![group("server (sends)"), group("client (receives)")],
        }
    }

    #[test]
    fn lines_never_exceed_the_width() {
        for figure in [0.1, 12_345.6, 123_456_789_012.3] {
            for width in [40, 60, 80, 120] {
                let text = grid(figure).text(width);
                for line in text.lines() {
                    assert!(len(line) <= width, "{width}: {line}");
                }
                // Nothing is lost: both ends, three figures each.
                assert_eq!(text.matches(&format!("{figure:.1}")).count(), 6, "{text}");
            }
        }
    }

    #[test]
    fn groups_are_placed_side_by_side_if_they_fit() {
        let expected = "\
by stage                 server (sends)          client (receives)
                    ns/packet  cycles/B    %  ns/packet  cycles/B    %
AEAD                      1.0       1.0  1.0        1.0       1.0  1.0
streams and copies          -         -    -          -         -    -
";
        assert_eq!(grid(1.0).text(80), expected);
        // One column less: one block below the other.
        let text = grid(1.0).text(65);
        let heads = text.lines().filter(|line| line.starts_with("by stage"));
        assert_eq!(heads.count(), 2, "{text}");
    }

    #[test]
    fn long_lines_wrap_between_words() {
        let text = "a    b\n(one two three four)\n\nlast";
        assert_eq!(wrap(text, 10), "a    b\n(one two\n  three\n  four)\n\nlast");
        assert_eq!(wrap("abcdefghijkl m", 5), "abcdefghijkl\n  m");
    }
}
