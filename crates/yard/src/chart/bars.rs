//! Stacked bars with one scale and a legend.

use std::fmt::Write as _;

use super::text::escaped;

/// Bars of parts laid end to end, all on one scale.
pub struct Bars {
    /// The heading.
    pub title: String,
    /// What was measured, and how.
    pub subtitle: String,
    /// The unit of a bar's length.
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
/// Parts in the order of their first appearance: one colour per row of the cost table. All are
/// distinct, and neighbours also differ in lightness.
const COLOURS: [&str; 16] = [
    "#0072b2", "#56b4e9", "#d55e00", "#f5b78a", "#009e73", "#8fd3ba", "#cc79a7", "#e69f00",
    "#6a2c80", "#f0e442", "#9e1b4a", "#7ab648", "#5b5b5b", "#c4c4c4", "#8c5a2b", "#123b2a",
];

/// The name of a bar's only part where no split is known. It is hatched so that it cannot be
/// mistaken for a stage.
pub const NOT_SPLIT: &str = "not split";

/// Definition of the hatch.
const HATCH: &str = r##"<defs><pattern id="not-split" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><rect width="6" height="6" fill="#f4f4f4"/><path d="M0 0V6" stroke="#777" stroke-width="2.5"/></pattern></defs>
"##;

/// The fill of a part. `names` lists all parts of the chart.
fn fill(names: &[&str], name: &str) -> &'static str {
    if name == NOT_SPLIT {
        return "url(#not-split)";
    }
    let mut stages = names.iter().filter(|one| **one != NOT_SPLIT);
    let at = stages.position(|one| *one == name).unwrap_or(0);
    COLOURS[at % COLOURS.len()]
}

impl Bars {
    /// The chart as SVG.
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
        if names.contains(&NOT_SPLIT) {
            svg += HATCH;
        }
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
        // A single part needs no name, unless its hatch needs explaining.
        let alone = matches!(names.as_slice(), [one] if *one != NOT_SPLIT);
        for (at, name) in names.iter().enumerate().filter(|_| !alone) {
            let x = 16.0 + LEGEND_COLUMN * (at % columns) as f64;
            let y = legend_top + LEGEND_LINE * (at / columns) as f64;
            let _ = writeln!(
                svg,
                r#"<rect x="{x}" y="{y}" width="12" height="12" fill="{}"/><text x="{}" y="{}">{}</text>"#,
                fill(&names, name),
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
        let width = len * scale;
        let _ = writeln!(
            svg,
            r#"<rect x="{x:.2}" y="{top}" width="{width:.2}" height="{BAR}" fill="{}"><title>{}: {len:.4}</title></rect>"#,
            fill(names, name),
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
    fn parts_are_contiguous_and_the_longest_bar_fills_the_width() {
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

    /// Lightness and the two colour axes of CIELAB, of "#rrggbb" under daylight (D65).
    fn lab(colour: &str) -> [f64; 3] {
        let channel = |at: usize| {
            let value = u8::from_str_radix(&colour[at..at + 2], 16).expect("two digits");
            let value = f64::from(value) / 255.0;
            if value <= 0.040_45 {
                value / 12.92
            } else {
                ((value + 0.055) / 1.055).powf(2.4)
            }
        };
        let [r, g, b] = [1, 3, 5].map(channel);
        let curve = |t: f64| {
            if t > 0.008_856 {
                t.cbrt()
            } else {
                7.787 * t + 16.0 / 116.0
            }
        };
        let x = curve((0.4124 * r + 0.3576 * g + 0.1805 * b) / 0.950_47);
        let y = curve(0.2126 * r + 0.7152 * g + 0.0722 * b);
        let z = curve((0.0193 * r + 0.1192 * g + 0.9505 * b) / 1.088_83);
        [116.0 * y - 16.0, 500.0 * (x - y), 200.0 * (y - z)]
    }

    #[test]
    fn every_stage_has_a_distinct_colour() {
        // The stages except the two that are not rows, then waiting and what no stage claims.
        const { assert!(COLOURS.len() >= squall::Stage::COUNT) };
        for (at, one) in COLOURS.iter().enumerate() {
            for other in &COLOURS[at + 1..] {
                let (one_lab, other_lab) = (lab(one), lab(other));
                let square = |axis: usize| (one_lab[axis] - other_lab[axis]).powi(2);
                let distance = (square(0) + square(1) + square(2)).sqrt();
                // About 2 is visible side by side; a thin part and a legend need more.
                assert!(distance > 25.0, "{one} {other}: {distance}");
            }
        }
        for pair in COLOURS.windows(2) {
            let difference = (lab(pair[0])[0] - lab(pair[1])[0]).abs();
            assert!(difference > 9.0, "{pair:?}: {difference}");
        }
    }

    #[test]
    fn an_unsplit_bar_is_hatched_and_uses_no_stages_colour() {
        let bar = |parts: &[(&'static str, f64)]| Bar {
            label: String::new(),
            parts: parts.to_vec(),
        };
        let bars = Bars {
            title: String::new(),
            subtitle: String::new(),
            unit: "s",
            bars: vec![bar(&[(NOT_SPLIT, 1.0)]), bar(&[("one", 1.0), ("two", 1.0)])],
        };
        let svg = bars.svg();
        let document = roxmltree::Document::parse(&svg).expect("XML");
        let fills: Vec<&str> = document
            .descendants()
            .filter(|node| node.has_tag_name("rect") && node.children().count() > 0)
            .filter_map(|node| node.attribute("fill"))
            .collect();
        assert_eq!(fills, ["url(#not-split)", COLOURS[0], COLOURS[1]]);
        let patterns = document
            .descendants()
            .filter(|node| node.attribute("id") == Some("not-split"));
        assert_eq!(patterns.count(), 1);
    }
}
