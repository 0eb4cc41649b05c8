//! The classifier: one hidden layer, ReLU, softmax cross-entropy, on one flat parameter vector.
//!
//! All sums run in a fixed order, so equal inputs give equal bytes on one machine. Peers on different machines may
//! differ in the last bit of their local training (`exp` and `ln` come from the platform); that does no harm, since
//! only averaged values reach the shared state.

use crate::data::{CLASSES, PIXELS, Sample};
use pccl_testkit::random::Rng;

/// Units of the hidden layer.
const HIDDEN: usize = 48;
// Where the parts of the parameter vector begin: hidden weights, hidden biases, output weights, output biases.
const HIDDEN_BIAS: usize = HIDDEN * PIXELS;
const OUT_WEIGHTS: usize = HIDDEN_BIAS + HIDDEN;
const OUT_BIAS: usize = OUT_WEIGHTS + CLASSES * HIDDEN;
const PARAMS: usize = OUT_BIAS + CLASSES;

// Plain minibatch gradient descent between two all-reduces.
const LEARNING_RATE: f32 = 0.2;
const BATCH: usize = 16;
const LOCAL_STEPS: usize = 20;

/// Starting parameters, a function of `seed` (He et al. 2015, uniform form; biases 0).
pub(crate) fn init(seed: u64) -> Vec<f32> {
    let mut rng = Rng::keyed(&[seed, 1]);
    let mut params = vec![0.0; PARAMS];
    for (range, fan_in) in [(0..HIDDEN_BIAS, PIXELS), (OUT_WEIGHTS..OUT_BIAS, HIDDEN)] {
        let bound = (6.0 / fan_in as f32).sqrt();
        params[range].fill_with(|| rng.symmetric() * bound);
    }
    params
}

/// Takes the local steps on the samples `indices` of `data`, in an order drawn from `rng`; returns the mean loss.
pub(crate) fn train(params: &mut [f32], data: &[Sample], indices: &[usize], rng: &mut Rng) -> f32 {
    let (mut order, mut loss) = (Vec::new(), 0.0);
    while order.len() < LOCAL_STEPS * BATCH {
        let mut again = indices.to_vec();
        rng.shuffle(&mut again);
        order.extend(again);
    }
    for batch in order.chunks(BATCH).take(LOCAL_STEPS) {
        let (batch_loss, gradient) = loss_and_gradient(params, data, batch);
        params.iter_mut().zip(&gradient).for_each(|(param, slope)| *param -= LEARNING_RATE * slope);
        loss += batch_loss;
    }
    loss / LOCAL_STEPS as f32
}

/// Share of right answers over all of `data`, 0 to 1.
pub(crate) fn accuracy(params: &[f32], data: &[Sample]) -> f64 {
    let is_right = |sample: &&Sample| {
        let probabilities = Pass::forward(params, &sample.image).probabilities;
        (0..CLASSES).all(|other| probabilities[other] <= probabilities[sample.label])
    };
    data.iter().filter(is_right).count() as f64 / data.len() as f64
}

/// Mean loss (nats) over `batch`, and its gradient.
fn loss_and_gradient(params: &[f32], data: &[Sample], batch: &[usize]) -> (f32, Vec<f32>) {
    let (mut loss, mut gradient) = (0.0, vec![0.0; params.len()]);
    for sample in batch.iter().map(|&index| &data[index]) {
        let pass = Pass::forward(params, &sample.image);
        // A probability that underflows to 0 must cost much, not infinitely much.
        loss -= pass.probabilities[sample.label].max(f32::MIN_POSITIVE).ln();
        pass.backward(params, sample, &mut gradient);
    }
    let scale = 1.0 / batch.len() as f32;
    gradient.iter_mut().for_each(|slope| *slope *= scale);
    (loss * scale, gradient)
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

    fn backward(&self, params: &[f32], sample: &Sample, gradient: &mut [f32]) {
        let mut hidden_slopes = [0.0; HIDDEN];
        for class in 0..CLASSES {
            let slope = self.probabilities[class] - f32::from(u8::from(class == sample.label));
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
            weights.iter_mut().zip(&sample.image).for_each(|(weight, pixel)| *weight += slope * pixel);
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

#[test]
fn the_gradient_agrees_with_differences() {
    let data = crate::data::load().expect("the file").train;
    let batch = [0, 1, 2, 3, 4, 5, 6, 7];
    let params = init(11);
    let (_, gradient) = loss_and_gradient(&params, &data, &batch);
    let mut checked = 0;
    for index in (0..PARAMS).step_by(7) {
        // Small, so that few units of the hidden layer change sides within it.
        let step = 2e-3;
        let moved = |by: f32| {
            let mut moved = params.clone();
            moved[index] += by;
            loss_and_gradient(&moved, &data, &batch).0
        };
        let expected = (moved(step) - moved(-step)) / (2.0 * step);
        let tolerance = 0.03 * expected.abs() + 2e-3;
        assert!((gradient[index] - expected).abs() < tolerance, "{index}: {} {expected}", gradient[index]);
        checked += usize::from(expected.abs() > 1e-2);
    }
    assert!(checked > 50, "only {checked} slopes were large enough to mean anything");
}
