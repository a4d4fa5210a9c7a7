//! What a run leaves behind: a table, the figures, pictures.

mod chart;
mod json;
mod markdown;
mod pictures;

use std::fs;
use std::path::Path;

use crate::figures::Figures;
use crate::peer::Outcome;
use crate::plan::Plan;
use crate::targets::{self, Target};

pub use json::last_line;

/// Writes everything into `dir`, and says whether the targets are met.
pub fn write(dir: &Path, figures: &Figures, plan: &Plan) -> Outcome<Vec<Target>> {
    let targets = targets::judge(figures, plan);
    fs::create_dir_all(dir)?;
    fs::write(dir.join("table.md"), markdown::write(figures, &targets))?;
    fs::write(dir.join("figures.json"), json::write(figures, &targets, plan)?)?;
    for (name, picture) in pictures::draw(figures) {
        fs::write(dir.join(name), picture)?;
    }
    Ok(targets)
}
