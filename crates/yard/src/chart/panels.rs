//! Nanoseconds per packet against size: lines in panels that share one scale.
//!
//! Both axes are logarithmic, so a fixed cost bends the left end up, and a given overhead in
//! percent is the same distance everywhere.

use std::fmt::Write as _;

use super::text::escaped;

/// A panel with its margins, in pixels.
const WIDTH: f64 = 560.0;
const HEIGHT: f64 = 400.0;
const LEFT: f64 = 62.0;
const RIGHT: f64 = 22.0;
const TOP: f64 = 46.0;
const BOTTOM: f64 = 54.0;
/// Above the panels: the machine.
const HEAD: f64 = 44.0;
/// Below the panels: the legend.
const FOOT: f64 = 56.0;
/// One per batch; distinguishable by people who cannot tell red from green.
const COLOURS: [&str; 6] = [
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00",
];

/// A logarithmic axis between two pixels.
struct Axis {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl Axis {
    /// An axis that covers these values, with some room at both ends.
    fn around(values: impl Iterator<Item = f64>, from: f64, to: f64) -> Self {
        let (low, high) = values.fold((f64::INFINITY, 0.0_f64), |(low, high), v| {
            (low.min(v), high.max(v))
        });
        Self {
            low: low / 1.15,
            high: high * 1.15,
            from,
            to,
        }
    }

    fn at(&self, value: f64) -> f64 {
        let part = (value / self.low).ln() / (self.high / self.low).ln();
        self.from + part * (self.to - self.from)
    }

    /// The multiples 1, 2 and 5 of powers of ten that lie on the axis.
    fn ticks(&self) -> Vec<f64> {
        let decades = -3..7;
        let ticks =
            decades.flat_map(|decade| [1.0, 2.0, 5.0].map(|digit| digit * 10_f64.powi(decade)));
        ticks
            .filter(|tick| (self.low..=self.high).contains(tick))
            .collect()
    }
}

/// What packet protection costs, one panel per title.
pub struct Panels {
    /// The machine, in one line.
    pub machine: String,
    /// The figures.
    pub points: Vec<Point>,
}

/// One figure of the chart.
pub struct Point {
    /// The title of its panel.
    pub panel: String,
    /// Packets per call: selects the line.
    pub batch: usize,
    /// Bytes of payload.
    pub size: usize,
    /// Nanoseconds per packet without header protection.
    pub ns: f64,
    /// Nanoseconds per packet with header protection.
    pub ns_with_hp: f64,
}

/// The points of a panel, one list for each batch.
struct Panel<'a> {
    title: &'a str,
    lines: Vec<(usize, Vec<&'a Point>)>,
}

/// Points with the same title make a panel.
fn panels(points: &[Point]) -> Vec<Panel<'_>> {
    let mut panels: Vec<Panel<'_>> = Vec::new();
    for point in points {
        let title = point.panel.as_str();
        let panel = match panels.iter().position(|panel| panel.title == title) {
            Some(at) => &mut panels[at],
            None => {
                panels.push(Panel {
                    title,
                    lines: Vec::new(),
                });
                let last = panels.len() - 1;
                &mut panels[last]
            }
        };
        match panel
            .lines
            .iter_mut()
            .find(|(batch, _)| *batch == point.batch)
        {
            Some((_, line)) => line.push(point),
            None => panel.lines.push((point.batch, vec![point])),
        }
    }
    panels
}

impl Panels {
    /// The chart as SVG.
    pub fn svg(&self) -> String {
        draw_all(&self.machine, &self.points)
    }
}

fn draw_all(machine: &str, points: &[Point]) -> String {
    let panels = panels(points);
    let columns = panels.len().clamp(1, 2);
    let (width, height) = (
        // The headline needs its room above a single panel too.
        (WIDTH * columns as f64).max(720.0),
        HEAD + HEIGHT * panels.len().div_ceil(columns) as f64 + FOOT,
    );
    // One scale for all panels, so that they can be compared.
    let scale = |values: &mut dyn Iterator<Item = f64>, from, to| Axis::around(values, from, to);
    let x = scale(
        &mut points.iter().map(|point| point.size as f64),
        LEFT,
        WIDTH - RIGHT,
    );
    let y = scale(
        &mut points.iter().flat_map(|point| [point.ns, point.ns_with_hp]),
        HEIGHT - BOTTOM,
        TOP,
    );
    let mut svg = format!(
        r##"<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12" fill="#222">
<title>Packet protection: ns a packet against bytes of payload</title>
<rect width="{width}" height="{height}" fill="#fff"/>
<text x="16" y="22" font-size="15" font-weight="bold">Packet protection: ns per packet, without and with header protection</text>
<text x="16" y="39" fill="#555">{}</text>
"##,
        escaped(machine)
    );
    let mut batches = Vec::new();
    for panel in &panels {
        for (batch, _) in &panel.lines {
            if !batches.contains(batch) {
                batches.push(*batch);
            }
        }
    }
    for (at, panel) in panels.iter().enumerate() {
        let left = WIDTH * (at % columns) as f64;
        let top = HEAD + HEIGHT * (at / columns) as f64;
        let _ = writeln!(svg, r#"<g transform="translate({left} {top})">"#);
        frame(&mut svg, panel, &x, &y);
        for (batch, line) in &panel.lines {
            draw(&mut svg, line, colour(&batches, *batch), &x, &y);
        }
        svg += "</g>\n";
    }
    legend(&mut svg, &batches, width, height - FOOT + 14.0);
    svg += "</svg>\n";
    svg
}

fn colour(batches: &[usize], batch: usize) -> &'static str {
    let at = batches.iter().position(|one| *one == batch).unwrap_or(0);
    COLOURS[at % COLOURS.len()]
}

/// Title, axes, grid and their numbers.
fn frame(svg: &mut String, panel: &Panel<'_>, x: &Axis, y: &Axis) {
    let (bottom, right) = (HEIGHT - BOTTOM, WIDTH - RIGHT);
    let _ = writeln!(
        svg,
        r#"<text x="{LEFT}" y="{:.1}" font-weight="bold">{}</text>"#,
        TOP - 14.0,
        escaped(panel.title)
    );
    for tick in y.ticks() {
        let at = y.at(tick);
        let _ = writeln!(
            svg,
            r##"<path d="M{LEFT} {at:.1}H{right}" stroke="#e2e2e2"/><text x="{:.1}" y="{:.1}" text-anchor="end">{tick}</text>"##,
            LEFT - 7.0,
            at + 4.0
        );
    }
    // Label the measured sizes, as far as there is room.
    let mut sizes: Vec<usize> = panel
        .lines
        .iter()
        .flat_map(|(_, line)| line.iter().map(|point| point.size))
        .collect();
    sizes.sort_unstable();
    sizes.dedup();
    let mut free_from = f64::NEG_INFINITY;
    let last = sizes.last().copied();
    for size in sizes {
        let at = x.at(size as f64);
        let _ = writeln!(
            svg,
            r##"<path d="M{at:.1} {TOP}V{bottom}" stroke="#eeeeee"/>"##
        );
        // The largest size is always labelled: its neighbours make room.
        let room = last.map_or(f64::INFINITY, |last| x.at(last as f64) - at);
        if at >= free_from && (Some(size) == last || room >= 34.0) {
            let _ = writeln!(
                svg,
                r#"<text x="{at:.1}" y="{:.1}" text-anchor="middle">{size}</text>"#,
                bottom + 17.0
            );
            free_from = at + 34.0;
        }
    }
    let _ = writeln!(
        svg,
        r##"<path d="M{LEFT} {TOP}V{bottom}H{right}" fill="none" stroke="#888"/>
<text x="{:.1}" y="{:.1}" text-anchor="middle" fill="#555">bytes of payload</text>
<text transform="translate(17 {:.1}) rotate(-90)" text-anchor="middle" fill="#555">ns per packet</text>"##,
        (LEFT + right) / 2.0,
        bottom + 36.0,
        (TOP + bottom) / 2.0
    );
}

/// One batch: dashed without header protection, solid and dotted at the figures with it.
fn draw(svg: &mut String, line: &[&Point], colour: &str, x: &Axis, y: &Axis) {
    let points = |ns: fn(&Point) -> f64| {
        let points = line
            .iter()
            .map(|point| format!("{:.1},{:.1}", x.at(point.size as f64), y.at(ns(point))));
        points.collect::<Vec<_>>().join(" ")
    };
    let _ = writeln!(
        svg,
        r#"<polyline points="{}" fill="none" stroke="{colour}" stroke-width="1.5" stroke-dasharray="5 4"/>
<polyline points="{}" fill="none" stroke="{colour}" stroke-width="2"/>"#,
        points(|point| point.ns),
        points(|point| point.ns_with_hp)
    );
    for point in line {
        let _ = writeln!(
            svg,
            r#"<circle cx="{:.1}" cy="{:.1}" r="3" fill="{colour}"><title>{} bytes: {:.1} ns, with header protection {:.1} ns</title></circle>"#,
            x.at(point.size as f64),
            y.at(point.ns_with_hp),
            point.size,
            point.ns,
            point.ns_with_hp
        );
    }
}

/// Colours and dashes, and what they mean.
fn legend(svg: &mut String, batches: &[usize], width: f64, top: f64) {
    let mut x = LEFT;
    for &batch in batches {
        let colour = colour(batches, batch);
        let _ = writeln!(
            svg,
            r#"<path d="M{x} {top}h26" stroke="{colour}" stroke-width="2"/><circle cx="{}" cy="{top}" r="3" fill="{colour}"/><text x="{}" y="{}">{batch} per call</text>"#,
            x + 13.0,
            x + 32.0,
            top + 4.0
        );
        x += 120.0;
        if x + 120.0 > width {
            break;
        }
    }
    let below = top + 22.0;
    let _ = writeln!(
        svg,
        r##"<path d="M{LEFT} {below}h26" stroke="#555" stroke-width="2"/><text x="{}" y="{}">with header protection</text>
<path d="M{} {below}h26" stroke="#555" stroke-width="1.5" stroke-dasharray="5 4"/><text x="{}" y="{}">AEAD alone</text>"##,
        LEFT + 32.0,
        below + 4.0,
        LEFT + 200.0,
        LEFT + 232.0,
        below + 4.0
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_axis_has_round_ticks_and_keeps_its_values_inside() {
        let axis = Axis::around([12.0, 210.0].into_iter(), 0.0, 100.0);
        assert_eq!(axis.ticks(), [20.0, 50.0, 100.0, 200.0]);
        assert!(axis.at(12.0) > 0.0 && axis.at(210.0) < 100.0);
        assert!((axis.at(axis.low)).abs() < 1e-9 && (axis.at(axis.high) - 100.0).abs() < 1e-9);
        // A single value still has a position.
        assert!(
            Axis::around([7.0].into_iter(), 0.0, 10.0)
                .at(7.0)
                .is_finite()
        );
    }
}
