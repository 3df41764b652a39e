//! Stacked bars with one scale and a legend.

use std::fmt::Write as _;

use super::text::escaped;

/// Bars of parts laid end to end, with one scale for all.
pub struct Bars {
    /// The heading.
    pub title: String,
    /// What was measured, and how.
    pub subtitle: String,
    /// What a bar's length is.
    pub unit: &'static str,
    /// The bars, from top to bottom.
    pub bars: Vec<Bar>,
}

/// One bar.
pub struct Bar {
    /// What the bar stands for.
    pub label: String,
    /// Name and length of each part, in the order drawn.
    pub parts: Vec<(&'static str, f64)>,
}

impl Bar {
    fn len(&self) -> f64 {
        self.parts.iter().map(|part| part.1).sum()
    }
}

const WIDTH: f64 = 900.0;
const LEFT: f64 = 170.0;
/// Right of the longest bar: its figure.
const RIGHT: f64 = 90.0;
const HEAD: f64 = 62.0;
const BAR: f64 = 24.0;
const PITCH: f64 = 36.0;
const LEGEND_COLUMN: f64 = 175.0;
const LEGEND_LINE: f64 = 20.0;
/// Parts in the order of their first appearance; neighbours differ in lightness too.
const COLOURS: [&str; 12] = [
    "#0072b2", "#56b4e9", "#d55e00", "#f0a35e", "#009e73", "#8fd3ba", "#cc79a7", "#e69f00",
    "#7f3c8d", "#f0e442", "#5b5b5b", "#bdbdbd",
];

impl Bars {
    /// The picture.
    pub fn svg(&self) -> String {
        let mut names: Vec<&str> = Vec::new();
        for part in self.bars.iter().flat_map(|bar| &bar.parts) {
            if !names.contains(&part.0) {
                names.push(part.0);
            }
        }
        let columns = ((WIDTH - 32.0) / LEGEND_COLUMN) as usize;
        let legend_top = HEAD + PITCH * self.bars.len() as f64 + 30.0;
        let lines = names.len().div_ceil(columns);
        let height = legend_top + LEGEND_LINE * lines as f64 + 12.0;
        let mut svg = format!(
            r##"<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="12" fill="#222">
<title>{title}</title>
<rect width="{WIDTH}" height="{height}" fill="#fff"/>
<text x="16" y="22" font-size="15" font-weight="bold">{title}</text>
<text x="16" y="40" fill="#555">{}</text>
"##,
            escaped(&self.subtitle),
            title = escaped(&self.title),
        );
        let longest = self.bars.iter().map(Bar::len).fold(0.0, f64::max);
        let scale = (WIDTH - LEFT - RIGHT) / longest.max(f64::MIN_POSITIVE);
        for (at, bar) in self.bars.iter().enumerate() {
            draw(&mut svg, bar, &names, HEAD + PITCH * at as f64, scale);
        }
        let _ = writeln!(
            svg,
            r##"<text x="{LEFT}" y="{}" fill="#555">{}</text>"##,
            legend_top - 14.0,
            escaped(self.unit)
        );
        // One part alone needs no name.
        for (at, name) in names.iter().enumerate().filter(|_| names.len() > 1) {
            let x = 16.0 + LEGEND_COLUMN * (at % columns) as f64;
            let y = legend_top + LEGEND_LINE * (at / columns) as f64;
            let _ = writeln!(
                svg,
                r#"<rect x="{x}" y="{y}" width="12" height="12" fill="{}"/><text x="{}" y="{}">{}</text>"#,
                COLOURS[at % COLOURS.len()],
                x + 18.0,
                y + 10.5,
                escaped(name)
            );
        }
        svg += "</svg>\n";
        svg
    }
}

/// Label, parts, and their sum.
fn draw(svg: &mut String, bar: &Bar, names: &[&str], top: f64, scale: f64) {
    let middle = top + BAR / 2.0 + 4.0;
    let _ = writeln!(
        svg,
        r#"<text x="{}" y="{middle}" text-anchor="end">{}</text>"#,
        LEFT - 8.0,
        escaped(&bar.label)
    );
    let mut x = LEFT;
    for &(name, len) in &bar.parts {
        let at = names.iter().position(|one| *one == name).unwrap_or(0);
        let width = len * scale;
        let _ = writeln!(
            svg,
            r#"<rect x="{x:.2}" y="{top}" width="{width:.2}" height="{BAR}" fill="{}"><title>{}: {len:.4}</title></rect>"#,
            COLOURS[at % COLOURS.len()],
            escaped(name)
        );
        x += width;
    }
    let _ = writeln!(
        svg,
        r#"<text x="{:.2}" y="{middle}">{:.3}</text>"#,
        x + 6.0,
        bar.len()
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_lie_end_to_end_and_the_longest_bar_fills_the_room() {
        let bars = Bars {
            title: "a & b".to_owned(),
            subtitle: String::new(),
            unit: "s",
            bars: vec![
                Bar {
                    label: "long".to_owned(),
                    parts: vec![("one", 1.0), ("two", 3.0)],
                },
                Bar {
                    label: "short".to_owned(),
                    parts: vec![("one", 2.0)],
                },
            ],
        };
        let svg = bars.svg();
        let document = roxmltree::Document::parse(&svg).expect("XML");
        let boxes: Vec<(f64, f64)> = document
            .descendants()
            .filter(|node| node.has_tag_name("rect") && node.children().count() > 0)
            .map(|node| {
                let number = |name| node.attribute(name).and_then(|text| text.parse().ok());
                (number("x").expect("x"), number("width").expect("width"))
            })
            .collect();
        let [one, two, short] = boxes.as_slice() else {
            panic!("{boxes:?}");
        };
        assert!(
            (one.0 + one.1 - two.0).abs() < 0.1 && (two.0 + two.1 - (WIDTH - RIGHT)).abs() < 0.1
        );
        assert!((short.1 - 2.0 * one.1).abs() < 0.1);
    }
}
