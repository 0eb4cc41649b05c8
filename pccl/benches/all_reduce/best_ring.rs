//! The rate that the best of all rings of some hosts reaches.

/// Rate of the slowest edge of the best ring of `hosts`, by trying all.
pub(crate) fn best_ring(hosts: usize, rate: &dyn Fn(usize, usize) -> f64) -> f64 {
    fn try_all(path: &mut Vec<usize>, lowest: f64, hosts: usize, rate: &dyn Fn(usize, usize) -> f64) -> f64 {
        let last = path[path.len() - 1];
        if path.len() == hosts {
            return lowest.min(rate(last, path[0]));
        }
        let mut best: f64 = 0.0;
        for next in 0..hosts {
            if !path.contains(&next) {
                path.push(next);
                best = best.max(try_all(path, lowest.min(rate(last, next)), hosts, rate));
                path.pop();
            }
        }
        best
    }
    try_all(&mut vec![0], f64::INFINITY, hosts, rate)
}
