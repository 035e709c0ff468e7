// Random problems for the sanitizers: every topic is run without Python and compared with a direct computation.
//
// A check makes one random problem and returns whether the engine agrees.
#pragma once

#include <random>

bool check_barycenters(std::mt19937_64& random);
bool check_evaluation(std::mt19937_64& random);
bool check_dense(std::mt19937_64& random);
bool check_exponential(std::mt19937_64& random);
bool check_games(std::mt19937_64& random);
bool check_linear(std::mt19937_64& random);
bool check_refine(std::mt19937_64& random);
