// AVX-VNNI's products with the instruction of AVX-512 VNNI, which other processors have: for products.cpp. Nothing else
// is included: it would be compiled for these processors too.
#define avxvnni evex
#include "quantized/avxvnni.cpp"
