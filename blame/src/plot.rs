//! A picture of a value over the run: one colour a thread, writes filled, reads hollow, readable on light and on dark.

use std::fmt::Write as _;

use crate::report::{Report, Told};

const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 420.0;
/// Room for the axis on the left, for the title, on the right, and for steps and legend below.
const LEFT: f64 = 84.0;
const TOP: f64 = 40.0;
const RIGHT: f64 = 24.0;
const BOTTOM: f64 = 96.0;
/// Most marks drawn: more would be one smear.
const MOST_MARKS: usize = 20_000;

/// Colours of threads, apart for colour-blind eyes too (Okabe and Ito's set, without yellow and black), each with
/// enough contrast on white and on near-black.
const COLOURS: [&str; 6] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b8860b", "#3f9fd8"];

/// One access with a number.
struct Mark<'a> {
    told: &'a Told,
    x: f64,
    value: f64,
}

/// The picture; `None` if no access has a number to draw.
pub fn svg(report: &Report) -> Option<String> {
    // What execve clears holds whatever lay behind it in the file until then: that is no value of the program's.
    let loaded = |told: &Told| told.by.as_deref().is_some_and(|by| by.starts_with("execve"));
    let with_value: Vec<(&Told, f64)> = report
        .accesses
        .iter()
        .filter(|told| !loaded(told))
        .filter_map(|told| Some((told, told.number?)))
        .collect();
    let kept = &with_value[with_value.len().saturating_sub(MOST_MARKS)..];
    // Steps apart as they are; accesses of one step one after the other within it.
    let mut steps: Vec<u64> = kept.iter().map(|(told, _)| step_of(told)).collect();
    let (first, last) = (*steps.first()?, *steps.last()?);
    steps.dedup();
    let span = (last - first + 1) as f64;
    let mut marks: Vec<Mark<'_>> = Vec::new();
    for (at, (told, value)) in kept.iter().enumerate() {
        let step = step_of(told);
        let same = |(other, _): &&(&Told, f64)| step_of(other) == step;
        let before = kept[..at].iter().rev().take_while(same).count();
        let after = kept[at..].iter().take_while(same).count();
        let part = (before as f64 + 0.5) / (before + after) as f64;
        marks.push(Mark { told, x: ((step - first) as f64 + part) / span, value: *value });
    }
    let (mut low, mut high) = marks.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), mark| {
        (low.min(mark.value), high.max(mark.value))
    });
    if low == high {
        (low, high) = (low - 1.0, high + 1.0);
    }
    let ticks = ticks(low, high);
    low = low.min(*ticks.first()?);
    high = high.max(*ticks.last()?);
    let x = |part: f64| LEFT + part * (WIDTH - LEFT - RIGHT);
    let y = |value: f64| TOP + (high - value) / (high - low) * (HEIGHT - TOP - BOTTOM);
    let mut threads: Vec<u32> = marks.iter().map(|mark| mark.told.tid).collect();
    threads.sort_unstable();
    threads.dedup();
    let colour = |tid: u32| {
        let at = threads.iter().position(|own| *own == tid).unwrap_or(0);
        COLOURS[at % COLOURS.len()]
    };

    let mut out = String::new();
    head(&mut out, report);
    for tick in &ticks {
        let at = y(*tick);
        let _ = writeln!(
            out,
            r#"<line class="grid" x1="{LEFT}" y1="{at:.1}" x2="{:.1}" y2="{at:.1}"/><text x="{:.1}" y="{:.1}" text-anchor="end">{}</text>"#,
            WIDTH - RIGHT,
            LEFT - 8.0,
            at + 4.0,
            number(*tick)
        );
    }
    let floor = HEIGHT - BOTTOM;
    let most = 6.0_f64.min(span);
    for i in 0..=most as u64 {
        let part = i as f64 / most;
        let step = first as f64 + part * span;
        let at = x(part);
        let _ = writeln!(
            out,
            r#"<line class="axis" x1="{at:.1}" y1="{floor}" x2="{at:.1}" y2="{:.1}"/><text x="{at:.1}" y="{:.1}" text-anchor="middle">{}</text>"#,
            floor + 5.0,
            floor + 20.0,
            step.round()
        );
    }
    let _ = writeln!(
        out,
        r#"<line class="axis" x1="{LEFT}" y1="{floor}" x2="{:.1}" y2="{floor}"/><text x="{:.1}" y="{:.1}" text-anchor="middle">step</text>"#,
        WIDTH - RIGHT,
        (LEFT + WIDTH - RIGHT) / 2.0,
        floor + 38.0
    );
    // The value holds from one write to the next.
    let writes: Vec<&Mark<'_>> = marks.iter().filter(|mark| mark.told.access == "write").collect();
    if let Some(first) = writes.first() {
        let mut path = format!("M{:.1} {:.1}", x(first.x), y(first.value));
        for mark in &writes[1..] {
            let _ = write!(path, "H{:.1}V{:.1}", x(mark.x), y(mark.value));
        }
        let _ = write!(path, "H{:.1}", x(1.0));
        let _ = writeln!(out, r#"<path class="value" d="{path}"/>"#);
    }
    // Reads first: a write on the same spot stays visible.
    for wanted in ["read", "write"] {
        for mark in marks.iter().filter(|mark| mark.told.access == wanted) {
            let (at, height, colour) = (x(mark.x), y(mark.value), colour(mark.told.tid));
            let style = if wanted == "read" {
                format!(r#"r="4" fill="none" stroke="{colour}" stroke-width="1.5""#)
            } else {
                format!(r#"r="3.5" fill="{colour}""#)
            };
            let told = mark.told;
            let title = format!(
                "{} {} by thread {} ({}) at step {} {} {}",
                told.access, told.new, told.tid, told.program, told.at, told.place.line, told.place.function
            );
            let _ = writeln!(
                out,
                r#"<circle cx="{at:.1}" cy="{height:.1}" {style}><title>{}</title></circle>"#,
                escape(title.trim_end())
            );
        }
    }
    legend(&mut out, &marks, &threads, &colour);
    out.push_str("</svg>\n");
    Some(out)
}

fn step_of(told: &Told) -> u64 {
    told.at.split('+').next().and_then(|step| step.parse().ok()).unwrap_or(0)
}

fn head(out: &mut String, report: &Report) {
    let title = format!("{} in run {} up to step {}", report.expr, report.run, report.at);
    let _ = write!(
        out,
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">
<style>
.back {{ fill: #ffffff; }} text {{ fill: #24292f; }} .grid {{ stroke: #d0d7de; }} .axis {{ stroke: #57606a; }}
.value {{ stroke: #8c959f; stroke-width: 1.5; fill: none; }}
@media (prefers-color-scheme: dark) {{
.back {{ fill: #0d1117; }} text {{ fill: #e6edf3; }} .grid {{ stroke: #30363d; }} .axis {{ stroke: #8b949e; }}
}}
</style>
<rect class="back" width="{WIDTH}" height="{HEIGHT}"/>
<text x="{LEFT}" y="24" font-size="15" font-weight="bold">{}</text>
"#,
        escape(&title)
    );
}

fn legend(out: &mut String, marks: &[Mark<'_>], threads: &[u32], colour: &dyn Fn(u32) -> &'static str) {
    let (mut at, height) = (LEFT, HEIGHT - 22.0);
    let mut item = |out: &mut String, shape: &str, text: &str| {
        let width = 26.0 + 7.0 * text.chars().count() as f64;
        if at + width < WIDTH - RIGHT {
            let _ = writeln!(
                out,
                r#"<g transform="translate({at:.1} {height})">{shape}<text x="10" y="4">{}</text></g>"#,
                escape(text)
            );
        }
        at += width;
    };
    item(out, r#"<circle r="3.5" fill="gray"/>"#, "write");
    item(out, r#"<circle r="4" fill="none" stroke="gray" stroke-width="1.5"/>"#, "read");
    for tid in threads {
        let program = marks.iter().find(|mark| mark.told.tid == *tid).map(|mark| mark.told.program.as_str());
        let text = format!("thread {tid} ({})", program.unwrap_or_default());
        item(out, &format!(r#"<rect x="-5" y="-5" width="10" height="10" fill="{}"/>"#, colour(*tid)), &text);
    }
}

/// Round values from about `low` to about `high`, four to eight of them.
fn ticks(low: f64, high: f64) -> Vec<f64> {
    let rough = (high - low) / 5.0;
    let unit = 10f64.powf(rough.log10().floor());
    let step =
        [1.0, 2.0, 5.0, 10.0].into_iter().map(|n| n * unit).find(|step| *step >= rough).unwrap_or(unit);
    let (from, to) = ((low / step).floor(), (high / step).ceil());
    // A range too fine for the format has no round values in it.
    if !(to - from).is_finite() || to - from > 20.0 {
        return vec![low, high];
    }
    (0..=(to - from) as u64).map(|i| (from + i as f64) * step).collect()
}

fn number(value: f64) -> String {
    if value.abs() >= 1e7 || (value != 0.0 && value.abs() < 1e-3) {
        format!("{value:.3e}")
    } else {
        let text = format!("{value:.3}");
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    }
}

/// For XML. What XML cannot hold at all is left out.
fn escape(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            c if c.is_control() => {}
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_ticks() {
        assert_eq!(ticks(0.0, 310.0), [0.0, 100.0, 200.0, 300.0, 400.0]);
        assert_eq!(ticks(-1.0, 1.0), [-1.0, -0.5, 0.0, 0.5, 1.0]);
        assert_eq!(number(0.5), "0.5");
        assert_eq!(number(310.0), "310");
    }

    #[test]
    fn hostile_names_stay_text() {
        assert_eq!(escape("<a>&\"\u{1b}"), "&lt;a&gt;&amp;&quot;");
    }
}
