// What the handles of fp8lab.h for linear layers hold.
#pragma once

#include <memory>

#include "emulation/spec/recipe.hpp"
#include "src/interface/device.hpp"
#include "src/interface/fp8lab.h"
#include "src/interface/linear_layer.hpp"

struct fp8lab_device {
  fp8lab::interface::Device device;
};

struct fp8lab_recipe {
  fp8lab::Recipe recipe;
};

struct fp8lab_linear {
  std::unique_ptr<fp8lab::interface::LinearLayer> layer;
};
