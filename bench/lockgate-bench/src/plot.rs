//! Curves as SVG.

use std::error::Error;
use std::ops::Range;
use std::path::{Path, PathBuf};

use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint};
use plotters::prelude::*;

use super::BenchError;

/// Width and height of a picture, pixels.
const SIZE: (u32, u32) = (840, 480);
/// Colours that can be told apart by all eyes (Okabe and Ito).
const COLOURS: [RGBColor; 8] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(230, 159, 0),
    RGBColor(0, 0, 0),
    RGBColor(120, 120, 120),
];

/// A picture of some curves over one logarithmic axis.
pub(super) struct Chart {
    /// File name without its ending.
    pub(super) name: String,
    pub(super) title: String,
    pub(super) x: &'static str,
    pub(super) y: &'static str,
    pub(super) scale: Scale,
    pub(super) curves: Vec<Curve>,
}

/// Scale of the vertical axis.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Scale {
    /// Linear scale from 0.
    Linear,
    Logarithmic,
}

/// One curve: its points from left to right. Points that cannot be on the axes are left out.
pub(super) struct Curve {
    pub(super) name: String,
    pub(super) points: Vec<(f64, f64)>,
}

/// Adds a point to the curve of a name, which is made if it is not there. Points may come in any
/// order.
pub(super) fn add_point(curves: &mut Vec<Curve>, name: &str, point: (f64, f64)) {
    let place = curves.iter().position(|curve| curve.name == name).unwrap_or_else(|| {
        curves.push(Curve { name: name.into(), points: Vec::new() });
        curves.len() - 1
    });
    let points = &mut curves[place].points;
    points.insert(points.partition_point(|other| other.0 <= point.0), point);
}

impl Chart {
    /// Draws it into a directory, which is made if it is not there. Returns the file; `None`: there
    /// was no point to draw.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(super) fn draw(&self, directory: &Path) -> Result<Option<PathBuf>, BenchError> {
        let file = directory.join(format!("{}.svg", self.name));
        let error = |error: std::io::Error| BenchError::Write { file: file.clone(), error };
        let points = || self.curves.iter().flat_map(|curve| self.on_axes(curve));
        let (Some(x), Some(y)) = (extent(points().map(|p| p.0)), extent(points().map(|p| p.1)))
        else {
            return Ok(None);
        };
        std::fs::create_dir_all(directory).map_err(error)?;
        let drawn = self.draw_on(&file, x, y);
        drawn.map_err(|cause| error(std::io::Error::other(cause.to_string())))?;
        Ok(Some(file))
    }

    /// The points of a curve as the axes have them: a logarithmic axis has exponents of 10.
    fn on_axes(&self, curve: &Curve) -> impl Iterator<Item = (f64, f64)> {
        let scale = self.scale;
        let drawable = curve.points.iter().filter(|&&(x, y)| x > 0.0 && y > 0.0);
        drawable.map(move |&(x, y)| match scale {
            Scale::Linear => (x.log10(), y),
            Scale::Logarithmic => (x.log10(), y.log10()),
        })
    }

    fn draw_on(&self, file: &Path, x: Range<f64>, y: Range<f64>) -> Result<(), Box<dyn Error>> {
        let (x, y) = (
            x.start - 0.1..x.end + 0.1,
            match self.scale {
                Scale::Linear => 0.0..y.end * 1.05,
                Scale::Logarithmic => y.start.floor()..y.end.ceil().max(y.start.floor() + 1.0),
            },
        );
        let of_y = |value: &f64| match self.scale {
            Scale::Linear => short(*value),
            Scale::Logarithmic => short(10f64.powf(*value)),
        };
        let y_marks = match self.scale {
            Scale::Linear => steps(y.end),
            Scale::Logarithmic => decades(&y),
        };
        let (x_marks, of_x) = (decades(&x), |value: &f64| short(10f64.powf(*value)));
        let area = SVGBackend::new(file, SIZE).into_drawing_area();
        area.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&area)
            .caption(&self.title, ("sans-serif", 18))
            .margin(12)
            .x_label_area_size(42)
            .y_label_area_size(56)
            .build_cartesian_2d(
                Axis { range: x, marks: x_marks },
                Axis { range: y, marks: y_marks },
            )?;
        chart
            .configure_mesh()
            .x_desc(self.x)
            .y_desc(self.y)
            .x_label_formatter(&of_x)
            .y_label_formatter(&of_y)
            .label_style(("sans-serif", 15))
            .light_line_style(TRANSPARENT)
            .draw()?;
        for (place, curve) in self.curves.iter().enumerate() {
            let colour = COLOURS[place % COLOURS.len()];
            let style = colour.stroke_width(2);
            chart
                .draw_series(LineSeries::new(self.on_axes(curve), style).point_size(3))?
                .label(&curve.name)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], style));
        }
        chart
            .configure_series_labels()
            .label_font(("sans-serif", 15))
            .background_style(WHITE.mix(0.85))
            .border_style(BLACK.mix(0.3))
            .draw()?;
        Ok(area.present()?)
    }
}

/// An axis with marks at the given places.
struct Axis {
    range: Range<f64>,
    marks: Vec<f64>,
}

impl Ranged for Axis {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, (start, end): (i32, i32)) -> i32 {
        let part = (value - self.range.start) / (self.range.end - self.range.start);
        start + (f64::from(end - start) * part).round() as i32
    }

    fn key_points<H: KeyPointHint>(&self, _: H) -> Vec<f64> {
        self.marks.clone()
    }

    fn range(&self) -> Range<f64> {
        self.range.clone()
    }
}

/// Returns the least and the largest of the values.
fn extent(values: impl Iterator<Item = f64>) -> Option<Range<f64>> {
    values.fold(None, |range: Option<Range<f64>>, value| match range {
        None => Some(value..value),
        Some(range) => Some(range.start.min(value)..range.end.max(value)),
    })
}

/// The whole exponents within a range.
fn decades(range: &Range<f64>) -> Vec<f64> {
    (range.start.ceil() as i32..=range.end.floor() as i32).map(f64::from).collect()
}

/// Returns four to ten round numbers from 0 up to `end`.
fn steps(end: f64) -> Vec<f64> {
    let decade = 10f64.powf(end.log10().floor());
    let step = [0.1, 0.2, 0.5, 1.0].map(|part| part * decade);
    let step = step.into_iter().find(|step| end / step <= 10.0).unwrap_or(decade);
    (0..=(end / step) as usize).map(|mark| mark as f64 * step).collect()
}

/// A number on an axis: 1000000 is 1M.
fn short(value: f64) -> String {
    let (part, unit) = match value {
        value if value >= 1e6 => (value / 1e6, "M"),
        value if value >= 1e3 => (value / 1e3, "k"),
        value => (value, ""),
    };
    format!("{}{unit}", (part * 100.0).round() / 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(scale: Scale, points: Vec<(f64, f64)>) -> Chart {
        let curves = vec![Curve { name: "<one> & two".into(), points }];
        let (name, title) = ("curve".to_owned(), "a title".to_owned());
        Chart { name, title, x: "policies", y: "Mpps", scale, curves }
    }

    #[test]
    fn a_chart_is_an_svg_that_holds_its_words_and_escapes_them() {
        let directory = tempfile::tempdir().unwrap();
        for scale in [Scale::Linear, Scale::Logarithmic] {
            let points = vec![(1.0, 40.0), (1000.0, 0.4), (100_000.0, 39.0)];
            let file = chart(scale, points).draw(&directory.path().join("new")).unwrap().unwrap();
            let text = std::fs::read_to_string(file).unwrap();
            for word in ["<svg", "a title", "policies", "Mpps", "&lt;one&gt; &amp; two", "100k"] {
                assert!(text.contains(word), "{word} in {text}");
            }
        }
    }

    #[test]
    fn without_a_point_there_is_no_picture_and_one_point_is_enough() {
        let directory = tempfile::tempdir().unwrap();
        for points in [vec![], vec![(0.0, 1.0), (1.0, f64::NAN)]] {
            assert!(chart(Scale::Linear, points).draw(directory.path()).unwrap().is_none());
        }
        let one = chart(Scale::Logarithmic, vec![(7.0, 7.0)]);
        assert!(one.draw(directory.path()).unwrap().is_some());
    }

    #[test]
    fn numbers_on_axes_are_short() {
        let numbers = [1.0, 0.25, 1000.0, 2_500_000.0, 44.0].map(short);
        assert_eq!(numbers, ["1", "0.25", "1k", "2.5M", "44"]);
        assert_eq!(steps(42.0), [0.0, 5.0, 10.0, 15.0, 20.0, 25.0, 30.0, 35.0, 40.0]);
        assert_eq!(steps(1.0).len(), 11);
        assert_eq!(decades(&(-0.1..5.1)), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
    }
}
