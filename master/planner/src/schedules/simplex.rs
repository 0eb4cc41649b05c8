//! Linear programs of a few variables and rows: the simplex method in its simplest form.
//!
//! All limits are at least 0, so the method can begin at 0 and needs no search for a point that is possible. Bland's
//! rule (Bland: "New finite pivoting rules for the simplex method", 1977) keeps it from going around in circles where
//! several rows bind at once.

/// Below this a coefficient is 0. They come from small whole numbers and parts of one, in few steps.
const NOTHING: f64 = 1e-9;
/// Many times what 8 variables and 50 rows take. Where rounding goes in circles, the point is possible all the same.
const MAX_STEPS: usize = 2000;

/// A condition: the sum of these parts of the variables is at most `most`.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Row {
    pub(crate) parts: Vec<f64>,
    pub(crate) most: f64,
}

/// A point with the greatest sum of variables, none below 0, that keeps all conditions. A limit that is no number, or
/// below 0, counts as 0. If the sum has no bound, or in the end of the steps, some point that keeps the conditions.
pub(crate) fn greatest_sum(variables: usize, rows: &[Row]) -> Vec<f64> {
    let mut tableau = Tableau::of(variables, rows);
    tableau.solve();
    tableau.point(variables)
}

/// Each row says: a basic variable is its limit less the row's parts of the free variables, which are 0.
struct Tableau {
    /// Row by row, one part for each free variable.
    parts: Vec<Vec<f64>>,
    limits: Vec<f64>,
    /// The amount that one more of each free variable adds to the sum.
    gains: Vec<f64>,
    /// The variable of each row; numbers from `variables` on are what conditions have left.
    basic: Vec<usize>,
    /// The variable of each column.
    free: Vec<usize>,
    /// The divisor of the limits.
    scale: f64,
}

impl Tableau {
    fn of(variables: usize, rows: &[Row]) -> Self {
        let rows: Vec<&Row> = rows.iter().filter(|row| row.most != f64::INFINITY).collect();
        // Of a number and none this is the number.
        let limit = |row: &&Row| row.most.max(0.0);
        let largest = rows.iter().map(limit).fold(0.0, f64::max);
        let scale = if largest > 0.0 { largest } else { 1.0 };
        Self {
            parts: rows.iter().map(|row| row.parts.clone()).collect(),
            limits: rows.iter().map(|row| limit(row) / scale).collect(),
            gains: vec![1.0; variables],
            basic: (variables..variables + rows.len()).collect(),
            free: (0..variables).collect(),
            scale,
        }
    }

    fn solve(&mut self) {
        for _ in 0..MAX_STEPS {
            let Some(column) = self.entering() else { return };
            let Some(row) = self.leaving(column) else { return };
            self.pivot(row, column);
        }
    }

    /// The free variable with the lowest number that adds to the sum.
    fn entering(&self) -> Option<usize> {
        let gaining = (0..self.free.len()).filter(|&column| self.gains[column] > NOTHING);
        gaining.min_by_key(|&column| self.free[column])
    }

    /// The row that is the first to bind; of several the one whose variable has the lowest number.
    fn leaving(&self, column: usize) -> Option<usize> {
        let binding = (0..self.basic.len()).filter(|&row| self.parts[row][column] > NOTHING);
        let step = |row: usize| self.limits[row] / self.parts[row][column];
        binding.min_by(|&a, &b| step(a).total_cmp(&step(b)).then(self.basic[a].cmp(&self.basic[b])))
    }

    /// The row's variable becomes free, the column's basic.
    fn pivot(&mut self, row: usize, column: usize) {
        let by = self.parts[row][column];
        let mut chosen = core::mem::take(&mut self.parts[row]);
        chosen[column] = 1.0;
        chosen.iter_mut().for_each(|part| *part /= by);
        let limit = self.limits[row] / by;
        for (other, parts) in self.parts.iter_mut().enumerate().filter(|(other, _)| *other != row) {
            let times = subtract(parts, &chosen, column);
            // Rounding must not make a point impossible.
            self.limits[other] = (self.limits[other] - times * limit).max(0.0);
        }
        subtract(&mut self.gains, &chosen, column);
        self.parts[row] = chosen;
        self.limits[row] = limit;
        core::mem::swap(&mut self.basic[row], &mut self.free[column]);
    }

    fn point(&self, variables: usize) -> Vec<f64> {
        let mut point = vec![0.0; variables];
        for (variable, limit) in self.basic.iter().zip(&self.limits).filter(|(v, _)| **v < variables) {
            point[*variable] = limit * self.scale;
        }
        point
    }
}

/// Puts what `chosen` says into the place of a column's variable. Returns how much of that there was.
fn subtract(parts: &mut [f64], chosen: &[f64], column: usize) -> f64 {
    let times = core::mem::replace(&mut parts[column], 0.0);
    parts.iter_mut().zip(chosen).for_each(|(part, chosen)| *part -= times * chosen);
    times
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::chance::Chance;

    /// The greatest sum, with a proof: prices of the conditions, each at least 0, such that every variable costs at
    /// least 1 and that all limits together cost what the point is worth. So no point is worth more (duality).
    pub(crate) fn proven_sum(variables: usize, rows: &[Row]) -> f64 {
        let mut tableau = Tableau::of(variables, rows);
        tableau.solve();
        let point = tableau.point(variables);
        let mut prices = vec![0.0; rows.len()];
        for (variable, gain) in tableau.free.iter().zip(&tableau.gains).filter(|(v, _)| **v >= variables) {
            prices[variable - variables] = -gain;
        }
        assert!(point.iter().all(|value| *value >= 0.0), "{point:?}");
        assert!(prices.iter().all(|price| *price >= -1e-6), "{prices:?}");
        for row in rows {
            let used: f64 = row.parts.iter().zip(&point).map(|(part, value)| part * value).sum();
            assert!(used <= row.most + tableau.scale * 1e-9, "{used} of {} in {rows:?}", row.most);
        }
        for variable in 0..variables {
            let cost: f64 = rows.iter().zip(&prices).map(|(row, price)| row.parts[variable] * price).sum();
            assert!(cost >= 1.0 - 1e-6, "variable {variable} costs {cost} in {rows:?}");
        }
        let sum: f64 = point.iter().sum();
        let bound: f64 = rows.iter().zip(&prices).map(|(row, price)| row.most * price).sum();
        assert!((sum - bound).abs() <= tableau.scale * 1e-9, "{sum} of {bound} in {rows:?}");
        sum
    }

    fn row(parts: &[f64], most: f64) -> Row {
        Row { parts: parts.to_vec(), most }
    }

    #[test]
    fn a_corner_is_found() {
        let rows = [row(&[2.0, 1.0], 4.0), row(&[1.0, 3.0], 6.0)];
        assert!((proven_sum(2, &rows) - 2.8).abs() < 1e-12);
        let point = greatest_sum(2, &rows);
        assert!((point[0] - 1.2).abs() < 1e-12 && (point[1] - 1.6).abs() < 1e-12, "{point:?}");
    }

    #[test]
    fn every_result_is_proven_with_ties_zeros_and_wide_ranges() {
        let mut chance = Chance::new(3);
        let mut zeros = 0;
        for round in 0..3000 {
            let n = 1 + chance.below(8);
            let limit = |chance: &mut Chance| match round % 4 {
                0 => chance.below(4) as f64,
                1 => 10f64.powf(chance.unit() * 9.0 - 3.0),
                2 => [0.0, 100.0][chance.below(2)],
                _ => 1.0 + chance.unit(),
            };
            let mut rows: Vec<Row> = (0..chance.below(40))
                .map(|_| {
                    let parts = (0..n).map(|_| chance.below(3) as f64).collect();
                    Row { parts, most: limit(&mut chance) }
                })
                .collect();
            // Nothing is without a bound.
            rows.push(Row { parts: vec![1.0; n], most: 10f64.powf(chance.unit() * 9.0 - 3.0) });
            // No more and no less than such a part of all: these bind at once where all is 0.
            for peer in 0..n {
                let part = (1.0 + chance.unit()) / n as f64;
                let of_all = |at: usize| f64::from(u8::from(at == peer)) - part;
                rows.push(Row { parts: (0..n).map(of_all).collect(), most: 0.0 });
                let floor = |at: usize| 0.5 / n as f64 - f64::from(u8::from(at == peer));
                rows.push(Row { parts: (0..n).map(floor).collect(), most: 0.0 });
            }
            zeros += usize::from(proven_sum(n, &rows) == 0.0);
        }
        assert!((100..2000).contains(&zeros), "{zeros}");
    }

    #[test]
    fn odd_limits_are_survived() {
        let odd = [f64::NAN, f64::NEG_INFINITY, -1.0, 0.0];
        for most in odd {
            assert_eq!(greatest_sum(2, &[row(&[1.0, 1.0], most), row(&[1.0, 0.0], 1.0)]), [0.0, 0.0]);
        }
        assert_eq!(greatest_sum(2, &[row(&[1.0, 1.0], f64::INFINITY), row(&[1.0, 1.0], 3.0)]), [3.0, 0.0]);
        // Without a bound, without conditions, without variables, without sense.
        assert_eq!(greatest_sum(2, &[row(&[0.0, 1.0], 3.0)]), [0.0, 0.0]);
        assert_eq!(greatest_sum(2, &[]), [0.0, 0.0]);
        assert!(greatest_sum(0, &[row(&[], 3.0)]).is_empty());
        let point = greatest_sum(2, &[row(&[f64::NAN, 1.0], 3.0), row(&[1.0, 1.0], f64::MIN_POSITIVE)]);
        assert_eq!(point.len(), 2);
    }
}
