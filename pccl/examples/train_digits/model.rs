//! The classifier: one hidden layer, ReLU, softmax cross-entropy, on one flat parameter vector.
//!
//! All sums run in a fixed order, so equal inputs give equal bytes on one machine. Peers on different machines may
//! differ in the last bit of their local training (`exp` and `ln` come from the platform); that does no harm, since
//! only averaged values reach the shared state.

use crate::dataset::{CLASSES, Dataset, PIXELS};
use crate::rng::Rng;

/// Units of the hidden layer.
pub(crate) const HIDDEN: usize = 48;
/// Elements of the parameter vector: hidden weights and biases, output weights and biases, in this order.
pub(crate) const PARAMS: usize = OUT_BIAS + CLASSES;

const HIDDEN_BIAS: usize = HIDDEN * PIXELS;
const OUT_WEIGHTS: usize = HIDDEN_BIAS + HIDDEN;
const OUT_BIAS: usize = OUT_WEIGHTS + CLASSES * HIDDEN;

/// How well parameters fit a data set.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Evaluation {
    /// Mean cross-entropy, nats.
    pub(crate) loss: f32,
    /// Share of images classified right, 0 to 1.
    pub(crate) accuracy: f64,
}

/// Plain minibatch gradient descent: what a peer does between two all-reduces.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct LocalSgd {
    /// Step size.
    pub(crate) learning_rate: f32,
    /// Images in a step.
    pub(crate) batch: usize,
    /// Steps in one round.
    pub(crate) steps: usize,
}

impl LocalSgd {
    /// Runs one round on the samples `indices` of `data`, in an order drawn from `rng`; returns the mean loss.
    /// Does nothing and returns 0 when `indices` is empty.
    pub(crate) fn train(&self, params: &mut [f32], data: &Dataset, indices: &[usize], rng: &mut Rng) -> f32 {
        if indices.is_empty() || self.steps == 0 || self.batch == 0 {
            return 0.0;
        }
        let mut order = indices.to_vec();
        let mut next = order.len();
        let mut batch = Vec::with_capacity(self.batch);
        let mut gradient = vec![0.0; params.len()];
        let mut loss_sum = 0.0;
        for _ in 0..self.steps {
            batch.clear();
            while batch.len() < self.batch {
                if next == order.len() {
                    rng.shuffle(&mut order);
                    next = 0;
                }
                batch.push(order[next]);
                next += 1;
            }
            loss_sum += loss_and_gradient(params, data, &batch, &mut gradient);
            for (param, slope) in params.iter_mut().zip(&gradient) {
                *param -= self.learning_rate * slope;
            }
        }
        loss_sum / self.steps as f32
    }
}

/// Starting parameters, a function of `seed` (He et al. 2015, uniform form; biases 0).
pub(crate) fn init(seed: u64) -> Vec<f32> {
    let mut rng = Rng::from_parts(&[seed, 1]);
    let mut params = vec![0.0; PARAMS];
    let mut fill = |range: std::ops::Range<usize>, fan_in: usize| {
        let bound = (6.0 / fan_in as f32).sqrt();
        params[range].fill_with(|| rng.symmetric() * bound);
    };
    fill(0..HIDDEN_BIAS, PIXELS);
    fill(OUT_WEIGHTS..OUT_BIAS, HIDDEN);
    params
}

/// Mean loss and share of right answers over all of `data`.
pub(crate) fn evaluate(params: &[f32], data: &Dataset) -> Evaluation {
    let mut loss_sum = 0.0;
    let mut right = 0usize;
    for index in 0..data.len() {
        let pass = Pass::forward(params, data.image(index));
        loss_sum += pass.loss(data.label(index));
        right += usize::from(pass.answer() == data.label(index));
    }
    let count = data.len().max(1);
    Evaluation { loss: loss_sum / count as f32, accuracy: right as f64 / count as f64 }
}

/// Mean loss over `batch` and its gradient, which overwrites `gradient`.
fn loss_and_gradient(params: &[f32], data: &Dataset, batch: &[usize], gradient: &mut [f32]) -> f32 {
    gradient.fill(0.0);
    let mut loss_sum = 0.0;
    for &index in batch {
        let pass = Pass::forward(params, data.image(index));
        loss_sum += pass.loss(data.label(index));
        pass.backward(params, data.image(index), data.label(index), gradient);
    }
    let scale = 1.0 / batch.len().max(1) as f32;
    gradient.iter_mut().for_each(|slope| *slope *= scale);
    loss_sum * scale
}

/// One image on its way through the network.
struct Pass {
    hidden: [f32; HIDDEN],
    probabilities: [f32; CLASSES],
}

impl Pass {
    fn forward(params: &[f32], image: &[f32]) -> Self {
        let mut hidden = [0.0; HIDDEN];
        for (unit, out) in hidden.iter_mut().enumerate() {
            let weights = &params[unit * PIXELS..(unit + 1) * PIXELS];
            *out = (dot(weights, image) + params[HIDDEN_BIAS + unit]).max(0.0);
        }
        let mut probabilities = [0.0; CLASSES];
        for (class, out) in probabilities.iter_mut().enumerate() {
            let start = OUT_WEIGHTS + class * HIDDEN;
            *out = dot(&params[start..start + HIDDEN], &hidden) + params[OUT_BIAS + class];
        }
        softmax(&mut probabilities);
        Self { hidden, probabilities }
    }

    fn loss(&self, label: usize) -> f32 {
        // A probability that underflows to 0 must cost much, not infinitely much.
        -self.probabilities[label].max(f32::MIN_POSITIVE).ln()
    }

    fn answer(&self) -> usize {
        let mut best = 0;
        for class in 1..CLASSES {
            if self.probabilities[class] > self.probabilities[best] {
                best = class;
            }
        }
        best
    }

    fn backward(&self, params: &[f32], image: &[f32], label: usize, gradient: &mut [f32]) {
        let mut hidden_slopes = [0.0; HIDDEN];
        for class in 0..CLASSES {
            let slope = self.probabilities[class] - f32::from(u8::from(class == label));
            gradient[OUT_BIAS + class] += slope;
            let start = OUT_WEIGHTS + class * HIDDEN;
            for unit in 0..HIDDEN {
                gradient[start + unit] += slope * self.hidden[unit];
                hidden_slopes[unit] += slope * params[start + unit];
            }
        }
        for unit in (0..HIDDEN).filter(|&unit| self.hidden[unit] > 0.0) {
            let slope = hidden_slopes[unit];
            gradient[HIDDEN_BIAS + unit] += slope;
            let weights = &mut gradient[unit * PIXELS..(unit + 1) * PIXELS];
            weights.iter_mut().zip(image).for_each(|(weight, pixel)| *weight += slope * pixel);
        }
    }
}

fn dot(left: &[f32], right: &[f32]) -> f32 {
    left.iter().zip(right).fold(0.0, |sum, (l, r)| sum + l * r)
}

fn softmax(values: &mut [f32]) {
    let max = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    values.iter_mut().for_each(|value| *value = (*value - max).exp());
    let sum: f32 = values.iter().sum();
    values.iter_mut().for_each(|value| *value /= sum);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataset::load;

    #[test]
    fn gradient_agrees_with_differences() {
        let data = load().unwrap().train;
        let batch = [0, 1, 2, 3, 4, 5, 6, 7];
        let params = init(11);
        let mut gradient = vec![0.0; PARAMS];
        loss_and_gradient(&params, &data, &batch, &mut gradient);
        let mut scratch = vec![0.0; PARAMS];
        let mut checked = 0;
        for index in (0..PARAMS).step_by(7) {
            // Small, so that few units of the hidden layer change sides within it.
            let step = 2e-3;
            let mut moved = params.clone();
            moved[index] = params[index] + step;
            let above = loss_and_gradient(&moved, &data, &batch, &mut scratch);
            moved[index] = params[index] - step;
            let below = loss_and_gradient(&moved, &data, &batch, &mut scratch);
            let expected = (above - below) / (2.0 * step);
            let tolerance = 0.03 * expected.abs() + 2e-3;
            assert!(
                (gradient[index] - expected).abs() < tolerance,
                "{index}: {} {expected}",
                gradient[index]
            );
            checked += usize::from(expected.abs() > 1e-2);
        }
        assert!(checked > 50, "only {checked} slopes were large enough to mean anything");
    }

    #[test]
    fn training_is_repeatable_to_the_byte_and_learns() {
        let data = load().unwrap().train;
        let indices: Vec<usize> = (0..data.len()).collect();
        let sgd = LocalSgd { learning_rate: 0.2, batch: 32, steps: 60 };
        let run = || {
            let mut params = init(5);
            let loss = sgd.train(&mut params, &data, &indices, &mut Rng::new(9));
            (params.iter().map(|p| p.to_bits()).collect::<Vec<_>>(), loss.to_bits(), params)
        };
        let (first, second) = (run(), run());
        assert_eq!((&first.0, first.1), (&second.0, second.1));
        assert!(evaluate(&first.2, &data).loss < evaluate(&init(5), &data).loss / 2.0);
    }

    #[test]
    fn nothing_to_train_on_changes_nothing() {
        let data = load().unwrap().train;
        let mut params = init(5);
        let sgd = LocalSgd { learning_rate: 0.2, batch: 32, steps: 3 };
        assert_eq!(sgd.train(&mut params, &data, &[], &mut Rng::new(9)), 0.0);
        assert_eq!(params, init(5));
    }

    #[test]
    fn seeds_matter() {
        assert_ne!(init(1), init(2));
        assert_eq!(init(1).len(), PARAMS);
    }
}
