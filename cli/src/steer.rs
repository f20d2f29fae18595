//! Frameworks and their allocators.
//!
//! A framework's caching allocator hides which memory is dead. Stream-ordered allocation
//! shows it, so frameworks are steered to that where the environment can do it, and only
//! where the user has not chosen already. A pure function of the environment.

/// A variable to set, and for whom.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub struct Steering {
    /// Name of the variable.
    pub variable: &'static str,
    /// Its value.
    pub value: &'static str,
    /// Who reads it.
    pub framework: &'static str,
}

struct Framework {
    name: &'static str,
    /// Set together, and only if the user has set none of them.
    variables: &'static [(&'static str, &'static str)],
}

/// What each framework reads. CuPy is not here: it chooses its pool in code alone
/// (`cupy.cuda.set_allocator(cupy.cuda.MemoryAsyncPool().malloc)`), none of its
/// environment variables does.
const FRAMEWORKS: &[Framework] = &[
    Framework {
        name: "PyTorch",
        // The second name is that of PyTorch 2.9 and later; older ones read the first.
        variables: &[
            ("PYTORCH_CUDA_ALLOC_CONF", "backend:cudaMallocAsync"),
            ("PYTORCH_ALLOC_CONF", "backend:cudaMallocAsync"),
        ],
    },
    Framework {
        name: "JAX",
        variables: &[("XLA_PYTHON_CLIENT_ALLOCATOR", "cuda_async")],
    },
    // Otherwise three quarters of the memory are taken at the start, dead or alive.
    Framework {
        name: "JAX",
        variables: &[("XLA_PYTHON_CLIENT_PREALLOCATE", "false")],
    },
    Framework {
        name: "TensorFlow",
        variables: &[("TF_GPU_ALLOCATOR", "cuda_malloc_async")],
    },
];

/// What to set, given whether a variable is set already.
pub fn steer(is_set: impl Fn(&str) -> bool) -> Vec<Steering> {
    FRAMEWORKS
        .iter()
        .filter(|framework| {
            !framework
                .variables
                .iter()
                .any(|(variable, _)| is_set(variable))
        })
        .flat_map(|framework| {
            framework
                .variables
                .iter()
                .map(|&(variable, value)| Steering {
                    variable,
                    value,
                    framework: framework.name,
                })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set_with(already: &[&str]) -> Vec<&'static str> {
        steer(|variable| already.contains(&variable))
            .iter()
            .map(|s| s.variable)
            .collect()
    }

    #[test]
    fn every_framework_is_steered_in_an_empty_environment() {
        assert_eq!(
            set_with(&[]),
            [
                "PYTORCH_CUDA_ALLOC_CONF",
                "PYTORCH_ALLOC_CONF",
                "XLA_PYTHON_CLIENT_ALLOCATOR",
                "XLA_PYTHON_CLIENT_PREALLOCATE",
                "TF_GPU_ALLOCATOR"
            ]
        );
    }

    #[test]
    fn either_of_pytorchs_names_that_the_user_set_keeps_both_as_they_are() {
        for name in ["PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"] {
            assert!(
                !set_with(&[name])
                    .iter()
                    .any(|variable| variable.starts_with("PYTORCH"))
            );
        }
    }

    #[test]
    fn a_choice_for_one_framework_leaves_the_others_steered() {
        let set = set_with(&["TF_GPU_ALLOCATOR", "XLA_PYTHON_CLIENT_PREALLOCATE"]);
        assert!(set.contains(&"XLA_PYTHON_CLIENT_ALLOCATOR"));
        assert!(!set.contains(&"XLA_PYTHON_CLIENT_PREALLOCATE"));
        assert!(!set.contains(&"TF_GPU_ALLOCATOR"));
    }
}
