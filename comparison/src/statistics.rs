//! Quantiles of a sample, and what several rounds have in common.

/// Several rounds' values: the median, and how far they lie apart.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spread {
    pub median: f64,
    pub least: f64,
    pub most: f64,
}

impl Spread {
    /// `None` without a value.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let sorted = sorted(values);
        Some(Self {
            median: median(&sorted)?,
            least: *sorted.first()?,
            most: *sorted.last()?,
        })
    }
}

pub fn sorted(values: impl IntoIterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    values
}

/// The mean of the two in the middle when their number is even.
fn median(sorted: &[f64]) -> Option<f64> {
    let (upper, lower) = (sorted.len() / 2, sorted.len().checked_sub(1)? / 2);
    Some(f64::midpoint(sorted[lower], sorted[upper]))
}

/// The least value that at least `share` of the sample does not exceed.
pub fn quantile(sorted: &[f64], share: f64) -> Option<f64> {
    let rank = (sorted.len() as f64 * share).ceil() as usize;
    sorted.get(rank.max(1) - 1).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_of_an_even_number_lies_between_the_two_in_the_middle() {
        assert_eq!(Spread::of([4.0, 1.0, 3.0, 2.0]).unwrap().median, 2.5);
        assert_eq!(Spread::of([9.0, 1.0, 2.0]).unwrap().median, 2.0);
        assert_eq!(Spread::of([7.0]).unwrap().median, 7.0);
    }

    #[test]
    fn spread_tells_the_least_and_the_most_and_nothing_of_nothing() {
        let spread = Spread::of([2.0, 8.0, 3.0]).unwrap();

        assert_eq!((spread.least, spread.most), (2.0, 8.0));
        assert_eq!(Spread::of([]), None);
    }

    #[test]
    fn quantiles_are_values_of_the_sample_by_nearest_rank() {
        let sample: Vec<f64> = (1..=100).map(f64::from).collect();

        assert_eq!(quantile(&sample, 0.5), Some(50.0));
        assert_eq!(quantile(&sample, 0.99), Some(99.0));
        assert_eq!(quantile(&sample[..10], 0.95), Some(10.0));
        assert_eq!(quantile(&sample, 1.0), Some(100.0));
        assert_eq!(quantile(&sample, 0.0), Some(1.0));
        assert_eq!(quantile(&[3.0], 0.99), Some(3.0));
        assert_eq!(quantile(&[], 0.5), None);
    }
}
